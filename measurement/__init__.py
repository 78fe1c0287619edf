"""Tools for measuring and reporting: used by reproduction, benchmarks and campaign.

- `timer`: time several functions in interleaved rounds.
- `machine`: describe the machine, the software, the commit and the command of a logged row.
- `markdown`: write tables, and fill templates of generated pages.
- `launches`: count the kernels that a GPU would launch.
- `process_memory`: measure the memory of this process.

All logs are `bcrf.tagger.files.JsonlLog` files, with one JSON object per line.
"""
