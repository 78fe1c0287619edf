"""Repair from marginals, against enumeration."""

import itertools

import pytest
import torch

from bcrf import Structure
from bcrf.decoding import mbr_tags


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(
    ("labels", "scheme"), [(["O", "B-X", "I-X"], "IOB2"), (list("BIES"), "BIES")]
)
def test_mbr_tags_maximize_the_expected_number_of_right_tags(labels, scheme, limited):
    generator = torch.Generator().manual_seed(1)
    structure = Structure.from_labels(labels, scheme)
    lengths = [4, 2, 1, 0]
    marginals = torch.rand(4, 4, len(labels), generator=generator, dtype=torch.float64)
    marginals[0, 1] = torch.eye(len(labels))[2]  # the most probable tag is not allowed there
    marginals = marginals / marginals.sum(-1, keepdim=True)
    limits = torch.ones(marginals.shape, dtype=torch.bool)
    if limited:
        limits[0, 2, 1] = limits[1, 0, 0] = False
    tags = mbr_tags(marginals, structure, lengths, limits if limited else None)
    for b, length in enumerate(lengths):
        allowed = [
            sequence
            for sequence in itertools.product(range(len(labels)), repeat=length)
            if not sequence
            or (
                bool(structure.start[sequence[0]] & structure.end[sequence[-1]])
                and all(structure.follow[pair] for pair in itertools.pairwise(sequence))
                and all(limits[b, i, tag] for i, tag in enumerate(sequence))
            )
        ]
        expected = {s: sum(marginals[b, i, t].item() for i, t in enumerate(s)) for s in allowed}
        assert tags[b, :length].tolist() == list(max(expected, key=expected.__getitem__))
        assert (tags[b, length:] == -100).all()


def test_mbr_without_constraints_is_the_most_probable_tag():
    marginals = torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert torch.equal(mbr_tags(marginals, None), marginals.argmax(-1))
