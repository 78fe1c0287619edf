"""Train the models that come with the package. See `python -m bundled_models --help`."""
