"""Norms and weighted sums of gradients that are never written out, one parameter at a time.

Legend: a unit's n tokens read `right` (n x r) and heard `left` (n x l); its gradient is
G = left^T right (l x r). Three ways to its norm:

- ghost:  |G|^2 = sum of (left left^T) * (right right^T): n^2 (l + r) multiplications;
- direct: G, its norm, and G is forgotten: n l r multiplications;
- fused:  G, kept until the norm over all layers is known, then added to the sum at once. This
  replaces the unit's part of the final weighted product and costs only passes over memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tacit.errors import UsageError
from tacit.training.dp.grad_sample_rules import Lookup, Part, Product, Whole

Way = Literal["ghost", "direct", "fused"]

FUSED_COST = 200
"""What keeping and adding one entry of G costs, counted in multiplications.

Two reads, a write and a read again from memory take about as long as this many multiplications
in a matrix product on today's processors.
"""

_GRAM_ENTRIES = 1 << 22
_GRAMS_KEPT = 4

Some = Tensor | slice
"""Some records of a batch: their rows, or the run of rows that they are."""

Grams = dict[object, Tensor]
"""The last Gram matrices: layers that read the same input, or share gates, share them."""


@dataclass(frozen=True)
class Units:
    """Units of one size: `rows[u]` are the records of unit `u`."""

    rows: Tensor
    everything: bool = False
    """The rows are 0, 1, 2, ... in order: nothing has to be gathered."""

    @property
    def size(self) -> int:
        """Records of a unit."""
        return int(self.rows.shape[1])

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def gather(self, x: Tensor) -> Tensor:
        """Records x tokens x width to units x their tokens x width."""
        if not self.everything:
            x = x.index_select(0, self.rows.reshape(-1))
        if self.size == 1:
            return x
        return x.reshape(len(self), self.size * x.shape[1], *x.shape[2:])

    def split(self, most: int) -> Sequence[slice]:
        """Runs of at most `most` units."""
        most = max(1, most)
        return [slice(i, i + most) for i in range(0, len(self), most)]


@dataclass
class Squares:
    """Squared norms, in double precision, and what rounding can have done to them.

    Terms are squares of sums of norms: where they are far larger than the total, terms cancel
    each other and little but rounding is left. Gradients that were written out (`terms`) are off
    by rounding times the root of their terms, inner products (`ghosts`) by rounding times theirs.
    """

    total: Tensor
    terms: Tensor
    ghosts: Tensor

    @classmethod
    def zeros(cls, units: Units) -> "Squares":
        """Nothing yet."""
        device = units.rows.device
        return cls(*torch.zeros(3, len(units), dtype=torch.float64, device=device))

    def add(self, other: "Squares") -> None:
        """Another parameter."""
        self.total += other.total
        self.terms += other.terms
        self.ghosts += other.ghosts


@dataclass
class Gradient:
    """All that a batch says about one parameter's gradient."""

    shape: torch.Size
    product: Product | None = None
    lookup: Lookup | None = None
    whole: Tensor | None = None

    @classmethod
    def join(cls, shape: torch.Size, parts: Sequence[Part]) -> "Gradient":
        """The parts of one parameter together: several uses are more tokens."""
        products = [p for p in parts if isinstance(p, Product)]
        lookups = [p for p in parts if isinstance(p, Lookup)]
        values = [p.values for p in parts if isinstance(p, Whole)]
        joined = cls(shape)
        if any(p.factor is not products[0].factor for p in products):
            raise UsageError("An LSTM with weight-drop is called twice in a pass; call it once.")
        if products:
            joined.product = replace(
                products[0],
                left=_cat([p.left for p in products]),
                right=_cat([p.right for p in products]),
            )
        if lookups:
            joined.lookup = Lookup(_cat([p.ids for p in lookups]), _cat([p.rows for p in lookups]))
        if values:
            joined.whole = values[0] if len(values) == 1 else torch.stack(values).sum(0)
        return joined

    def without(self, records: Tensor) -> "Gradient":
        """The same with some records' parts exactly zero, whatever stood there."""

        def clean(x: Tensor) -> Tensor:
            return x.masked_fill(records.view(-1, *[1] * (x.dim() - 1)), 0)

        new = Gradient(self.shape)
        if self.product is not None:
            new.product = replace(
                self.product, left=clean(self.product.left), right=clean(self.product.right)
            )
        if self.lookup is not None:
            new.lookup = Lookup(self.lookup.ids, clean(self.lookup.rows))
        if self.whole is not None:
            new.whole = clean(self.whole)
        return new

    def way(self, records: int, *, keep: bool = True) -> Way:
        """The cheapest way to the norm for a unit of so many records."""
        if self.product is None:
            return "ghost"
        left, right = self.product.left, self.product.right
        tokens = records * left.shape[1]
        entries = left.shape[2] * right.shape[2]
        cost: dict[Way, float] = {"direct": (2 * tokens + FUSED_COST / 3) * entries}
        if self.product.factor is None:
            cost["ghost"] = 2 * tokens * tokens * (left.shape[2] + right.shape[2])
        if keep:
            cost["fused"] = FUSED_COST * entries
        return min(cost, key=lambda way: cost[way])

    def squares(
        self, units: Units, scale: Tensor | None, grams: Grams, *, keep: bool = False
    ) -> "Squares":
        """The squared norm of each unit's gradient."""
        found = Squares.zeros(units)
        if self.product is not None and self.way(units.size, keep=keep) == "direct":
            out = self.like.new_empty(self.shape)
            each = [sum_of_squares(self.of(as_run(rows), scale, out)) for rows in units.rows]
            found.total += torch.stack(each)
            found.terms += _token_norms(self.product, units, scale)
            return found
        if self.whole is not None:
            values = units.gather(scaled(self.whole, scale).flatten(1).unsqueeze(1))
            found.total += _row_squares(values.sum(1))
            found.terms += torch.linalg.vector_norm(values, dim=2).sum(1).square()
        if self.product is not None:
            total, terms = _ghost(self.product, units, scale, grams)
            found.total += total
            found.ghosts += terms
        if self.lookup is not None:
            total, terms = _lookup_squares(self.lookup, units, scale, self.shape[0])
            found.total += total
            found.terms += terms
        if self.lookup is not None and self.product is not None:
            found.total += 2 * _cross(self.product, self.lookup, units, scale)
            found.ghosts += terms
        return found

    @property
    def like(self) -> Tensor:
        """A tensor of its precision and device, as long as the batch has records."""
        if self.product is not None:
            return self.product.left
        if self.lookup is not None:
            return self.lookup.rows
        assert self.whole is not None
        return self.whole

    def of(self, rows: Some, scale: Tensor | None, out: Tensor) -> Tensor:
        """The gradient of some records together, written into `out`."""
        if self.product is None:
            out.zero_()
        else:
            left, right = _pair(self.product, rows, scale)
            torch.mm(left.t(), right, out=out)
            if self.product.factor is not None:
                out.mul_(self.product.factor)
        if self.whole is not None:
            out.add_(_take(scaled(self.whole, scale), rows).sum(0).view(self.shape))
        if self.lookup is not None:
            looked = _take(scaled(self.lookup.rows, scale), rows)
            ids = _take(self.lookup.ids, rows)
            out.index_add_(0, ids.reshape(-1), looked.reshape(-1, looked.shape[-1]))
        return out

    def add_weighted(self, weight: Tensor, total: Tensor) -> None:
        """Add every record's gradient times its weight to `total`."""
        if self.product is not None:
            rows = weight.nonzero().view(-1)
            if len(rows) == 0:
                return
            left, right = _pair(self.product, as_run(rows), weight)
            if self.product.factor is None:
                total.addmm_(left.t(), right)
            else:
                like = left.t() @ right if total.is_contiguous() else (right.t() @ left).t()
                total.addcmul_(like, self.product.factor)
        if self.whole is not None:
            total.view(-1).addmv_(self.whole.flatten(1).t(), weight)
        if self.lookup is not None:
            total.add_(_into_rows(scaled(self.lookup.rows, weight), self.lookup.ids, len(total)))


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """Each record's part times its factor."""
    return x if scale is None else x * scale.view(-1, *[1] * (x.dim() - 1))


def row_norms(x: Tensor) -> Tensor:
    """The norm of every row, or of every column where these follow each other in memory."""
    return torch.linalg.vector_norm(x if x.is_contiguous() else x.t(), dim=-1).view(-1)


def sum_of_squares(x: Tensor) -> Tensor:
    """The squared norm, row by row and then in double precision."""
    return row_norms(x).to(torch.float64).square().sum()


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), 1)


def _pair(product: Product, rows: Some, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both sides of some records as matrices of tokens, the narrower one scaled."""
    left, right = product.left, product.right
    if isinstance(rows, slice) or len(rows) < len(left):
        left, right = _take(left, rows), _take(right, rows)
        scale = scale if scale is None else scale[rows]
    if left.shape[2] <= right.shape[2]:
        left = scaled(left, scale)
    else:
        right = scaled(right, scale)
    if not left.is_contiguous() and not right.is_contiguous():  # time comes first in LSTMs
        left, right = left.transpose(0, 1), right.transpose(0, 1)
    return left.reshape(-1, left.shape[2]), right.reshape(-1, right.shape[2])


def as_run(rows: Tensor) -> Some:
    """Rows that follow each other as a slice, which is taken without a copy; others as they are.

    >>> as_run(torch.tensor([2, 3, 4])), as_run(torch.tensor([2, 4]))
    (slice(2, 5, None), tensor([2, 4]))
    """
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return slice(first, last + 1)
    return rows


def _take(x: Tensor, rows: Some) -> Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _gram(x: Tensor, units: Units, scale: Tensor | None, grams: Grams) -> Tensor:
    key = (x.data_ptr(), x.shape, x.stride(), id(units), scale is None)
    if key not in grams:
        if len(grams) >= _GRAMS_KEPT:
            del grams[next(iter(grams))]
        tokens = units.gather(scaled(x, scale))
        grams[key] = tokens @ tokens.transpose(1, 2)
    return grams[key]


def _ghost(
    product: Product, units: Units, scale: Tensor | None, grams: Grams
) -> tuple[Tensor, Tensor]:
    """|G|^2 as the sum of the entrywise product of two Gram matrices of tokens; the terms."""
    tokens = units.size * product.left.shape[1]
    if tokens == 1:
        left, right = (units.gather(x)[:, 0] for x in (product.left, product.right))
        squares = _row_squares(left) * _row_squares(right)
        if scale is not None:
            squares *= scale[units.rows[:, 0]].to(torch.float64).square()
        return squares, squares
    narrow_left = product.left.shape[2] <= product.right.shape[2]

    def one(part: Units, grams: Grams) -> tuple[Tensor, Tensor]:
        left = _gram(product.left, part, scale if narrow_left else None, grams)
        right = _gram(product.right, part, None if narrow_left else scale, grams)
        both = left * right
        alone = both.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        return both.sum((1, 2), dtype=torch.float64), alone.sum(1, dtype=torch.float64).square()

    most = _GRAM_ENTRIES // tokens**2
    if len(units) <= most:
        return one(units, grams)
    parts = [one(Units(units.rows[run]), {}) for run in units.split(most)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _row_squares(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1).to(torch.float64).square()


def _token_norms(product: Product, units: Units, scale: Tensor | None) -> Tensor:
    """The square of the sum of the norms of what each token adds."""
    each = torch.linalg.vector_norm(product.left, dim=2)
    each = each * torch.linalg.vector_norm(product.right, dim=2)
    each = scaled(each, None if scale is None else scale.abs())
    if product.factor is not None:
        each = each * product.factor.abs().max()
    return units.gather(each.sum(1, keepdim=True)).flatten(1).sum(1, dtype=torch.float64).square()


def _lookup_squares(
    lookup: Lookup, units: Units, scale: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Rows of the same unit and the same word are added first, then squared; the terms."""
    rows = units.gather(scaled(lookup.rows, scale))
    ids = units.gather(lookup.ids.unsqueeze(-1)).squeeze(-1)
    unit = torch.arange(len(units), device=ids.device).unsqueeze(1)
    keys, place = torch.unique(ids + unit * size, return_inverse=True)
    norms = torch.linalg.vector_norm(rows, dim=2).to(torch.float64).view(-1)
    terms = norms.new_zeros(len(keys)).index_add_(0, place.view(-1), norms)
    both = norms.new_zeros(2, len(units))
    both[0].index_add_(0, keys // size, _row_squares(_into_rows(rows, place, len(keys))))
    both[1].index_add_(0, keys // size, terms.square())
    return both[0], both[1]


def _into_rows(rows: Tensor, ids: Tensor, size: int) -> Tensor:
    """A table of `size` rows where each row is added at its id."""
    flat = rows.reshape(-1, rows.shape[-1])
    return torch.ops.aten.embedding_dense_backward(flat, ids.reshape(-1), size, -1, False)


def _cross(product: Product, lookup: Lookup, units: Units, scale: Tensor | None) -> Tensor:
    """<G of the product, G of the table> where both are the same matrix.

    The table's token s adds its row e_s at word w_s, the product's token t adds l_t r_t^T; they
    meet in the entry l_t[w_s], with weight <e_s, r_t>.
    """
    out = torch.empty(len(units), dtype=torch.float64, device=product.left.device)
    tokens = units.size * max(product.left.shape[1], lookup.ids.shape[1])
    for run in units.split(_GRAM_ENTRIES // tokens**2):
        part = units if len(units) <= run.stop and run.start == 0 else Units(units.rows[run])
        rows = part.gather(scaled(lookup.rows, scale))
        right = part.gather(scaled(product.right, scale))
        left = part.gather(product.left)
        ids = part.gather(lookup.ids.unsqueeze(-1)).transpose(1, 2)
        meet = left.gather(2, ids.expand(-1, left.shape[1], -1))
        out[run] = (meet * (right @ rows.transpose(1, 2))).sum((1, 2), dtype=torch.float64)
    return out
