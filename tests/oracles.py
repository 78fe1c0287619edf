"""Slow and obviously right answers for one sentence, in float64.

Nothing here imports the library under test. A sentence is a pair of numpy arrays, `unary [n, T]`
and `pair [n-1, T, T]` (position, from, to); -inf marks a removed tag or arc. The methods differ:
enumeration of all paths (CRF), minimisation of the dual D and maximisation over the polytope
(Bregman), a linear program (MAP).

Enumeration costs n T^n: `paths` and all that is built on it, `primal` included, are for T^n up to
about 1e5. `live`, `dual`, `map_lp`, `projections` and `mean_field` are polynomial.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize  # type: ignore[import-untyped]
from torch import Tensor

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Sentence = tuple[Array, Array]
Fold = Literal["right", "half"]


class Primal(NamedTuple):
    """The maximum of <q, w> + H(q) over the polytope, and its maximiser."""

    value: float
    edge_marginals: Array  # [n-1, T, T]
    tag_marginals: Array  # [n, T]


class Dual(NamedTuple):
    """Minimum of D and where it is attained; lam is 0 on dead tags, its live mean is 0."""

    value: float
    edge_marginals: Array  # [n-1, T, T]
    tag_marginals: Array  # [n, T]
    lam: Array  # [n, T]


def sentence(
    unary: Tensor, transitions: Tensor | None = None, length: int | Tensor | None = None
) -> Sentence:
    """unary [n, T], transitions None | [T, T] | [n-1, T, T] -> (unary [L, T], pair [L-1, T, T])."""
    size, num_tags = len(unary) if length is None else int(length), unary.shape[1]
    matrix = torch.zeros(num_tags, num_tags) if transitions is None else transitions
    if matrix.ndim == 2:
        matrix = matrix.expand(len(unary), num_tags, num_tags)
    u, pair = (x.detach().cpu().to(torch.float64).numpy().copy() for x in (unary, matrix))
    return u[:size], pair[: max(size - 1, 0)]


def sentences(
    unary: Tensor, transitions: Tensor | None = None, lengths: Tensor | None = None
) -> list[Sentence]:
    """The sentences of a batch: unary [B, n, T], transitions None | [T, T] | [B, n-1, T, T]."""
    matrices: Sequence[Tensor | None] = [transitions] * len(unary)
    if transitions is not None and transitions.ndim == 4:
        matrices = list(transitions)
    sizes = [None] * len(unary) if lengths is None else list(lengths)
    return [sentence(*parts) for parts in zip(unary, matrices, sizes, strict=True)]


def fold_scores(unary: Array, pair: Array, fold: Fold = "right") -> Array:
    """Arc scores w [n-1, T, T], n >= 2; every fold gives a path the same score (maths section 1).

    right: u[i] into the arcs that enter i (u[0] into the arcs that leave 0).
    half: half of u[i] into the arcs that enter i, half into those that leave it; all at the ends.
    """
    w, inside = pair.copy(), 0.0 if fold == "right" else 0.5
    for e in range(len(w)):
        leaving = 1.0 if e == 0 else inside
        entering = 1.0 if e == len(w) - 1 else 1 - inside
        if leaving:  # 0 * -inf would be NaN
            w[e] += leaving * unary[e][:, None]
        w[e] += entering * unary[e + 1][None, :]
    return w


def live(unary: Array, pair: Array) -> Bools:
    """[n, T]: the tags on some path of finite score (one boolean pass from each end)."""
    n = len(unary)
    tag, arc = np.isfinite(unary), np.isfinite(pair)
    ahead, behind = tag.copy(), tag.copy()
    for i in range(1, n):
        ahead[i] &= (ahead[i - 1][:, None] & arc[i - 1]).any(axis=0)
    for i in reversed(range(n - 1)):
        behind[i] &= (arc[i] & behind[i + 1][None, :]).any(axis=1)
    return ahead & behind


def live_arcs(unary: Array, pair: Array) -> Bools:
    """[n-1, T, T]: the arcs on some path of finite score."""
    tags = live(unary, pair)
    if len(tags) and not tags.any(axis=1).all():
        raise ValueError("the sentence has no path of finite score")
    return np.isfinite(pair) & tags[:-1, :, None] & tags[1:, None, :]


def without_scores(unary: Array, pair: Array) -> Sentence:
    """The same paths, all with score 0."""
    return np.where(np.isfinite(unary), 0.0, -np.inf), np.where(np.isfinite(pair), 0.0, -np.inf)


def trimmed(unary: Array, pair: Array, fold: Fold = "right") -> Array:
    """Folded arc scores with -inf on every arc that no path of finite score uses."""
    return np.where(live_arcs(unary, pair), fold_scores(unary, pair, fold), -np.inf)


def _logsumexp(x: Array) -> float:
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum()))


def _softmax(x: Array) -> Array:
    unnormalised = np.exp(x - x.max())
    return unnormalised / unnormalised.sum()


def tag_marginals(q: Array) -> Array:
    """[n, T] from arc marginals, n >= 2: outgoing mass; incoming mass at the last position."""
    return np.concatenate([q.sum(axis=2), q[-1:].sum(axis=1)])


def path_scores(unary: Array, pair: Array, sequences: Ints) -> Array:
    """<w, y> [P] of tag sequences [P, n]: the sum of their unary and pair scores."""
    scores = np.zeros(len(sequences))
    for i in range(len(unary)):
        scores += unary[i, sequences[:, i]]
    for e in range(len(pair)):
        scores += pair[e, sequences[:, e], sequences[:, e + 1]]
    return scores


def paths(unary: Array, pair: Array) -> tuple[Ints, Array]:
    """All tag sequences of finite score [P, n] in lexicographic order, and their scores [P]."""
    n, num_tags = unary.shape
    every = np.indices((num_tags,) * n).reshape(n, num_tags**n).T
    scores = path_scores(unary, pair, every)
    finite = np.isfinite(scores)
    return every[finite], scores[finite]


def log_partition(unary: Array, pair: Array) -> float:
    """A(w) = log of the sum over paths of exp(score); maths section 2."""
    return _logsumexp(paths(unary, pair)[1])


def crf_edge_marginals(unary: Array, pair: Array) -> Array:
    """[n-1, T, T]: probability of each arc under p(path) = exp(score - A)."""
    sequences, scores = paths(unary, pair)
    q = np.zeros_like(pair)
    for e in range(len(pair)):
        np.add.at(q[e], (sequences[:, e], sequences[:, e + 1]), _softmax(scores))
    return q


def crf_tag_marginals(unary: Array, pair: Array) -> Array:
    """[n, T]: probability of each tag under p(path) = exp(score - A)."""
    sequences, scores = paths(unary, pair)
    r = np.zeros_like(unary)
    for i in range(len(unary)):
        np.add.at(r[i], sequences[:, i], _softmax(scores))
    return r


def crf_entropy(unary: Array, pair: Array) -> float:
    """Entropy of the distribution over paths, - sum p log p."""
    scores = paths(unary, pair)[1]
    log_p = scores - _logsumexp(scores)
    return float(-(np.exp(log_p) * log_p).sum())


def crf_kl(p: Sentence, q: Sentence) -> float:
    """KL(p, q) = sum over paths of p log(p / q); inf if q lacks a path of p."""
    sequences, scores = paths(*p)
    log_p = scores - log_partition(*p)
    log_q = path_scores(*q, sequences) - log_partition(*q)
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def best_paths(unary: Array, pair: Array, k: int) -> tuple[Array, Ints]:
    """The min(k, P) highest scores, best first, and their paths; ties in lexicographic order."""
    sequences, scores = paths(unary, pair)
    order = np.argsort(-scores, kind="stable")[:k]
    return scores[order], sequences[order]


def dual_objective(w: Array, lam: Array) -> tuple[float, Array]:
    """D(lam) and q = softmax of each edge of w[e,s,t] - lam[e,s] + lam[e+1,t]; maths section 3."""
    x = w - lam[:-1, :, None] + lam[1:, None, :]
    top = x.max(axis=(1, 2), keepdims=True)
    mass = np.exp(x - top).sum(axis=(1, 2), keepdims=True)
    return float((top + np.log(mass)).sum()), np.exp(x - top) / mass


def _dual_gradient(q: Array) -> Array:
    """dD / dlam [n, T]: incoming minus outgoing mass."""
    return np.pad(q.sum(axis=1), ((1, 0), (0, 0))) - np.pad(q.sum(axis=2), ((0, 1), (0, 0)))


def _dual_hessian(q: Array) -> Array:
    """d2D / dlam dlam [n, T, n, T]: each edge adds the covariance of the two tags of its arc."""
    edges, num_tags, _ = q.shape
    h = np.zeros((edges + 1, num_tags, edges + 1, num_tags))
    for e in range(edges):
        a, b = q[e].sum(axis=1), q[e].sum(axis=0)
        h[e, :, e] += np.diag(a) - np.outer(a, a)
        h[e + 1, :, e + 1] += np.diag(b) - np.outer(b, b)
        h[e, :, e + 1] -= q[e] - np.outer(a, b)
        h[e + 1, :, e] -= (q[e] - np.outer(a, b)).T
    return h


def _newton_step(gradient: Array, hessian: Array) -> Array:
    """Pseudo-inverse of the Hessian (null space: one constant per position) times the gradient."""
    scale = 1 / np.sqrt(np.maximum(np.diag(hessian), 1e-30))  # rare tags have tiny rows
    inverse = np.linalg.pinv(hessian * np.outer(scale, scale), rcond=1e-12, hermitian=True)
    return scale * (inverse @ (scale * gradient))


def dual(unary: Array, pair: Array, fold: Fold = "right") -> Dual:
    """B(w) = min of D(lam), maths section 3: L-BFGS, then Newton. The fold changes lam only."""
    n, num_tags = unary.shape
    if n == 0:
        return Dual(0.0, pair.copy(), unary.copy(), unary.copy())
    w, tags = trimmed(unary, pair, fold), live(unary, pair)
    lam = np.zeros((n, num_tags))
    if n == 1:
        return Dual(_logsumexp(unary[0]), w, _softmax(unary[0])[None], lam)
    free = tags & (tags.sum(axis=1, keepdims=True) > 1)
    free[0] = free[-1] = False

    def objective(x: Array) -> tuple[float, Array]:
        full = np.zeros((n, num_tags))
        full[free] = x
        value, q = dual_objective(w, full)
        return value, _dual_gradient(q)[free]

    if free.any():
        options = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-7, "maxcor": 20}
        lam[free] = minimize(objective, lam[free], jac=True, method="L-BFGS-B", options=options).x
    value, q = dual_objective(w, lam)
    for _ in range(100):
        residual = np.abs(_dual_gradient(q)).max(where=free, initial=0.0)
        if residual < 1e-15:
            break
        step = np.zeros_like(lam)
        step[free] = _newton_step(_dual_gradient(q)[free], _dual_hessian(q)[free][:, free])
        for size in 0.5 ** np.arange(40):
            new_value, new_q = dual_objective(w, lam - size * step)
            new_residual = np.abs(_dual_gradient(new_q)).max(where=free, initial=0.0)
            tie = abs(new_value - value) <= 1e-13 * max(1.0, abs(value))
            if new_residual < residual if tie else new_value < value:
                break
        else:
            break  # nothing improves any more: converged to rounding
        lam, value, q = lam - size * step, new_value, new_q
    if residual > 1e-10:
        raise RuntimeError(f"the dual did not converge: residual {residual:.1e}")
    lam -= free * lam.sum(axis=1, keepdims=True) / np.maximum(free.sum(axis=1, keepdims=True), 1)
    return Dual(value, q, tag_marginals(q), lam)


def max_entropy_bound(unary: Array, pair: Array) -> float:
    """H_max = max of H(q) over conv(Y) = B(0 on the live arcs); maths section 2 (Prop. 1)."""
    return dual(*without_scores(unary, pair)).value


def _polytope(arcs: Bools) -> tuple[Array, Array]:
    """A, b with conv(Y) = {q >= 0: A q = b} over the arcs in C order: mass one, flow conserved."""
    edges, num_tags, _ = arcs.shape
    e, s, t = np.nonzero(arcs)
    rows = [(e == k).astype(np.float64) for k in range(edges)]
    for i in range(1, edges):
        for tag in range(num_tags):
            entering, leaving = (e == i - 1) & (t == tag), (e == i) & (s == tag)
            if entering.any():
                rows.append(entering.astype(np.float64) - leaving)
    return np.stack(rows), np.array([1.0] * edges + [0.0] * (len(rows) - edges))


def primal(unary: Array, pair: Array) -> Primal:
    """B(w) = max over q in conv(Y) of <q, w> + H(q), H(q) = - sum over arcs of q log q.

    Newton's method inside the polytope, from the arc marginals of the uniform distribution over
    paths (positive on every live arc): each direction is the gradient, projected on A d = 0 in the
    metric diag(1/q) of the Hessian: every iterate is feasible, and D never appears.
    """
    n = len(unary)
    if n == 0:
        return Primal(0.0, pair.copy(), unary.copy())
    arcs = live_arcs(unary, pair)
    if n == 1:
        return Primal(_logsumexp(unary[0]), pair.copy(), _softmax(unary[0])[None])
    w, constraints = fold_scores(unary, pair)[arcs], _polytope(arcs)[0]
    q = crf_edge_marginals(*without_scores(unary, pair))[arcs]

    def objective(x: Array) -> float:
        return float((x * (w - np.log(x))).sum())

    for _ in range(500):
        root = np.sqrt(q)
        gradient = root * (w - np.log(q) - 1)
        normals = constraints * root
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)  # rare tags have tiny rows
        projected = gradient - normals.T @ np.linalg.lstsq(normals.T, gradient, rcond=1e-12)[0]
        direction = root * projected
        slope = float(projected @ projected)  # Newton decrement, squared
        shrinking = direction < 0
        limit = float((-q[shrinking] / direction[shrinking]).min(initial=np.inf))
        size = min(1.0, 0.95 * limit)
        while size > 1e-12 and objective(q + size * direction) < objective(q) + 0.1 * size * slope:
            size /= 2
        if slope < 1e-22 or size <= 1e-12:
            break
        q = q + size * direction
    if slope > 1e-9:  # about twice the distance to the maximum
        raise RuntimeError(f"the primal did not converge: decrement {slope:.1e}")
    full = np.zeros_like(pair)
    full[arcs] = q
    return Primal(objective(q), full, tag_marginals(full))


def map_lp(unary: Array, pair: Array) -> float:
    """Score of the best path as a linear program over conv(Y): paper section 3, Proposition 2."""
    if len(unary) == 0:
        return 0.0
    arcs = live_arcs(unary, pair)
    if len(unary) == 1:
        w = unary[0, np.isfinite(unary[0])]
        a, b = np.ones((1, len(w))), np.ones(1)
    else:
        w = fold_scores(unary, pair)[arcs]
        a, b = _polytope(arcs)
    result = linprog(-w, A_eq=a, b_eq=b, bounds=(0, None), method="highs")
    if not result.success:
        raise RuntimeError(result.message)
    return float(-result.fun)


def projections(
    unary: Array,
    pair: Array,
    iterations: int,
    *,
    fold: Fold = "right",
    first: Literal[1, 2] = 1,
    omega: float | Sequence[float] = 1.0,
) -> Array:
    """Algorithm 1 of the paper in primal space: q [n-1, T, T] after k single-parity projections.

    The projection on C_i multiplies the arcs that enter tag v of position i by exp(sigma(v)) and
    divides those that leave it by the same, sigma = log(out / in) / 2, then divides both edges by
    their mass (paper, appendix "Iterative Bregman Projections"). `first` is the first 0-based
    position to be projected: 2 is the paper's order. `omega` (one number, or one per iteration) is
    the exponent of exp(sigma): lam <- lam + omega (new - lam). Arcs on no path start at 0.
    """
    n, num_tags = unary.shape
    if n < 2:
        return pair.copy()
    omegas = [omega] * iterations if isinstance(omega, (int, float)) else omega
    w = trimmed(unary, pair, fold)
    q = np.exp(w - w.max(axis=(1, 2), keepdims=True))  # an edge's constant is lost in its mass
    for k, exponent in zip(range(iterations), omegas, strict=True):
        for i in range(1 if (first + k) % 2 else 2, n - 1, 2):
            for v in range(num_tags):
                incoming, outgoing = q[i - 1, :, v].sum(), q[i, v, :].sum()
                if incoming == 0 and outgoing == 0:
                    continue  # a dead tag
                scale = np.sqrt(outgoing / incoming) ** exponent
                q[i - 1, :, v] *= scale
                q[i, v, :] /= scale
            q[i - 1 : i + 1] /= q[i - 1 : i + 1].sum(axis=(1, 2), keepdims=True)
    return q / q.sum(axis=(1, 2), keepdims=True)


def mean_field(unary: Array, pair: Array, iterations: int) -> Array:
    """r [n, T] after k parallel updates, from the softmax of the unary scores; maths section 7."""
    if not np.isfinite(pair).all():
        raise ValueError("mean field cannot represent removed transitions")
    n, num_tags = unary.shape
    r = np.array([_softmax(unary[i]) for i in range(n)]).reshape(n, num_tags)
    for _ in range(iterations):
        new = np.zeros_like(r)
        for i in range(n):
            m = unary[i].copy()
            for t in range(num_tags):
                for other in range(num_tags):
                    if i > 0:
                        m[t] += r[i - 1, other] * pair[i - 1, other, t]
                    if i < n - 1:
                        m[t] += r[i + 1, other] * pair[i, t, other]
            new[i] = _softmax(m)
        r = new
    return r
