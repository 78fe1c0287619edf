"""Numerical building blocks: sums of exponentials, associative scans, trimming."""
