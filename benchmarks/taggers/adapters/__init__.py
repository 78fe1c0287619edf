"""One module for each library that trains taggers.

Each has the functions

- `prepare(job)`: convert the corpus to the format of the library;
- `train(job, report)`: train on the training file, keep the model that is best on dev, and report
  each score on dev;
- `load(job)`: return a function that tags sentences;
- `model_path(job)`: the file or folder that has to be kept for tagging.

Only `ours` imports bcrf; the others also work in an environment without it.
"""
