"""The same text, the same ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.simulator.tokenizer import Tokenizer, render_chat

texts = st.text(alphabet=st.sampled_from("ab <|>\né漢_im_start|endof") | st.characters(codec="utf-8"), max_size=80)


@given(texts)
def test_text_comes_back(text: str) -> None:
    tokenizer = Tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(texts, texts, texts)
def test_a_common_prefix_of_text_is_one_of_ids_but_for_the_last_piece(head: str, one: str, other: str) -> None:
    tokenizer = Tokenizer()
    a, b = tokenizer.encode(head + one), tokenizer.encode(head + other)
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    # all but pieces that reach past the common text: at most the last one, or a marker cut in two
    assert len(tokenizer.decode(a[:common]).encode()) >= len(head.encode()) - 16


def test_ids_do_not_depend_on_what_was_seen_before() -> None:
    fresh, used = Tokenizer(), Tokenizer()
    used.encode("quite another text, seen first " * 10)
    assert fresh.encode("the text in question") == used.encode("the text in question")
    assert max(fresh.encode("the text in question")) < 151_936


def test_about_four_bytes_a_token() -> None:
    text = "def area(width, height):\n    return width * height\n" * 50
    assert 3.3 < len(text) / len(Tokenizer().encode(text)) <= 4.0


def test_answers_are_deterministic_and_tokenise_to_their_own_ids() -> None:
    tokenizer = Tokenizer()
    pieces = [tokenizer.answer_piece(42, index) for index in range(50)]
    assert pieces == [Tokenizer().answer_piece(42, index) for index in range(50)]
    assert pieces != [tokenizer.answer_piece(43, index) for index in range(50)]
    text = "".join(text for _, text in pieces)
    rendered = tokenizer.encode(render_chat([{"role": "assistant", "content": text}]))
    ids = [token for token, _ in pieces]
    assert any(rendered[i : i + 50].tolist() == ids for i in range(len(rendered)))


def test_longer_conversations_extend_the_rendering() -> None:
    one = [{"role": "user", "content": "hi"}]
    two = [*one, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "bye"}]
    assert render_chat(two).startswith(render_chat(one))
    assert render_chat(one, continue_final_message=True).endswith("hi")
    assert "hammer" in render_chat(one, [{"function": {"name": "hammer"}}])


@pytest.mark.parametrize("message", [{}, {"role": 3}, {"role": "user", "content": 3}, {"role": "user", "content": [3]}])
def test_messages_that_cannot_be_rendered_say_which(message: dict) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\]"):
        render_chat([{"role": "user", "content": "fine"}, message])
