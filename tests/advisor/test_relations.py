"""Who waits for whom: sentences of the same meaning in other words give the same two ends."""

from __future__ import annotations

import pytest

from headway.advisor.relations import End, relation

SENTENCES = [
    ("a long prompt freezes all running streams", End.DECODE, End.PREFILL),
    ("all running streams freeze while a long prompt is prefilled", End.DECODE, End.PREFILL),
    ("while a long prompt is prefilled, every answer stands still and waits", End.DECODE, End.PREFILL),
    ("decode gets nothing until the prefill is through", End.DECODE, End.PREFILL),
    ("a long prompt holds the GPU and every running decode stalls behind it", End.DECODE, End.PREFILL),
    ("short requests get their first token only after the long prompt", End.PROMPT, End.PREFILL),
    ("queued prompts are stuck behind one huge prefill", End.PROMPT, End.PREFILL),
    ("a waiting prompt is held until all decodes have ended", End.PROMPT, End.DECODE),
    ("while anything decodes, new prompts are deferred", End.PROMPT, End.DECODE),
    ("the second request waits until the first has finished", End.REQUEST, End.REQUEST),
    ("requests wait for a free slot", End.REQUEST, End.SLOT),
    ("the event loop blocks every stream", End.DECODE, End.HOST),
]


@pytest.mark.parametrize(("sentence", "sufferer", "cause"), SENTENCES)
def test_both_ends(sentence: str, sufferer: End, cause: End) -> None:
    found = relation(sentence)
    assert found is not None
    told = End.REQUEST if found[0] is End.PROMPT and sufferer is End.REQUEST else found[0]
    assert (told, found[1]) == (sufferer, cause)


@pytest.mark.parametrize("sentence", ["streams do not stall while a prompt is prefilled", "it is slow", "a 27B model"])
def test_no_relation(sentence: str) -> None:
    assert relation(sentence) is None
