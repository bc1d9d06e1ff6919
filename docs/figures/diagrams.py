"""Two diagrams: how Tersor reduces gradients, and the two-shot algorithm."""

from svg import Drawing

RANK_COLOURS = ("blue", "orange", "green")


def how_it_works() -> Drawing:
    drawing = Drawing(
        860,
        470,
        "How Tersor works",
        "Each rank adds its residual to the gradient and encodes the sum. The ranks exchange the"
        " short codes, decode them and compute the mean. The optimizer of each rank gets the same"
        " mean. The rounding error stays in the residual until the next step.",
    )
    for rank, left in enumerate((150, 550)):
        _rank_column(drawing, rank, left)
    drawing.line([(310, 258), (550, 330)], colour="blue", width=2.5, arrow=True)
    drawing.line([(550, 258), (310, 330)], colour="orange", width=2.5, arrow=True)
    drawing.text(430, 250, "network", size=15, bold=True, anchor="middle")
    drawing.text(430, 350, "3.9x fewer bytes with int8,", size=13, colour="quiet", anchor="middle")
    drawing.text(430, 368, "7.5x fewer with int4", size=13, colour="quiet", anchor="middle")
    return drawing


def _rank_column(drawing: Drawing, rank: int, left: float) -> None:
    colour, middle = RANK_COLOURS[rank], left + 80
    drawing.text(middle, 26, f"rank {rank}", size=16, colour=colour, bold=True, anchor="middle")
    steps = [
        ("gradient", "from the backward pass"),
        ("add residual", "error of the last step"),
        ("encode", "float32 to few bits"),
        ("decode, mean", "same bits on all ranks"),
        ("optimizer step", "code unchanged"),
    ]
    outside = left - 12 if rank == 0 else left + 172
    for row, (name, note) in enumerate(steps):
        top = 44 + 86 * row
        drawing.box(left, top, 160, 58, colour="box", outline=colour, radius=8)
        drawing.text(middle, top + 25, name, size=15, bold=True, anchor="middle")
        drawing.text(middle, top + 44, note, size=12, colour="quiet", anchor="middle")
        if row < 4:
            drawing.line([(middle, top + 58), (middle, top + 86)], colour=colour, arrow=True)
    edge, side = (left, -1) if rank == 0 else (left + 160, 1)
    loop = [(edge, 245), (edge + 42 * side, 245), (edge + 42 * side, 159), (edge, 159)]
    drawing.line(loop, colour="purple", dashes="5 4", arrow=True)
    anchor = "end" if rank == 0 else "start"
    at = outside + 36 * side
    drawing.text(at, 198, "residual:", size=12, colour="purple", anchor=anchor)
    drawing.text(at, 214, "rounding", size=12, colour="purple", anchor=anchor)
    drawing.text(at, 230, "error (+ef)", size=12, colour="purple", anchor=anchor)


def two_shot() -> Drawing:
    drawing = Drawing(
        860,
        360,
        "The two-shot algorithm on three ranks",
        "Shot one: each rank encodes shard k and sends the code to rank k, the owner. The owner"
        " decodes and adds the shards. Shot two: each owner encodes its sum and sends the code to"
        " all ranks.",
    )
    columns = [(30, "gradients of each rank"), (350, "sum of one shard"), (650, "sum on all ranks")]
    for left, heading in columns:
        drawing.text(left + 90, 26, heading, size=14, bold=True, anchor="middle")
    for rank in range(3):
        top = 62 + 92 * rank
        drawing.text(30, top - 6, f"rank {rank}", size=13, colour="quiet")
        _shards(drawing, 30, top, range(3), 0.35)
        _shards(drawing, 350, top, [rank], 1.0)
        _shards(drawing, 650, top, range(3), 1.0)
    for shard in range(3):
        for rank in range(3):
            here, there = 84 + 92 * rank, 84 + 92 * shard
            drawing.line([(212, here), (346, there)], colour=RANK_COLOURS[shard], arrow=True)
            drawing.line([(532, there), (646, here)], colour=RANK_COLOURS[shard], arrow=True)
    for middle, name, note in (
        (279, "shot 1", "each rank sends each owner its shard, encoded"),
        (589, "shot 2", "each owner sends all ranks the sum, encoded"),
    ):
        drawing.text(middle, 326, name, size=14, bold=True, anchor="middle")
        drawing.text(middle, 346, note, size=12, colour="quiet", anchor="middle")
    return drawing


def _shards(
    drawing: Drawing, left: float, top: float, shards: list[int] | range, opacity: float
) -> None:
    """Draws three cells; only the given shards are filled."""
    for cell in range(3):
        if cell in shards:
            colour = RANK_COLOURS[cell]
            drawing.box(left + 60 * cell, top, 56, 44, colour=colour, opacity=opacity, radius=4)
            inside = "ink" if opacity < 1 else "paper"
            words = f"shard {cell}"
            drawing.text(
                left + 60 * cell + 28, top + 27, words, size=12, colour=inside, anchor="middle"
            )
        else:
            drawing.box(left + 60 * cell, top, 56, 44, colour="paper", outline="grid", radius=4)
