"""Small systems of linear equations, without dependencies."""

from __future__ import annotations

from collections.abc import Sequence


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """x with matrix * x = right, with columns scaled to one; None where the matrix is singular
    to seven digits. The matrix is square."""
    n = len(right)
    scale = [max(abs(row[j]) for row in matrix) or 1.0 for j in range(n)]
    table = [[row[j] / scale[j] for j in range(n)] + [right[i]] for i, row in enumerate(matrix)]
    table = [[x / (max(map(abs, row[:n])) or 1.0) for x in row] for row in table]
    solution = eliminate(table)
    return None if solution is None else [x / part for x, part in zip(solution, scale, strict=True)]


def eliminate(table: list[list[float]]) -> list[float] | None:
    """Solution of n equations, a row each with its right-hand side last, by Gauss elimination with pivots. None where a pivot
    is below 1e-7, so scale first. The table is used up."""
    n = len(table)
    for k in range(n):
        pivot = max(range(k, n), key=lambda r: abs(table[r][k]))
        table[k], table[pivot] = table[pivot], table[k]
        if abs(table[k][k]) < 1e-7:
            return None
        for r in range(n):
            if r != k:
                factor = table[r][k] / table[k][k]
                table[r] = [x - factor * y for x, y in zip(table[r], table[k], strict=True)]
    return [table[k][n] / table[k][k] for k in range(n)]
