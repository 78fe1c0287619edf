"""Prediction: compute labels and probabilities of sentences with a trained network."""
