"""Train taggers of several libraries on the same files, and compare them."""
