"""Run the reliability campaign: crashes, tampered folders, mutated inputs and random chains.

`python -m campaign` runs all parts; `python -m campaign --sample` runs a small share of each part.
"""
