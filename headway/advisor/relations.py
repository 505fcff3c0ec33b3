"""Who waits for whom: what a sentence of a report says, as (sufferer, cause).

Most reports in words say one thing: something stands still because of something else. The causes of the verdict table differ by
these two ends, not by the verb: a decode that waits for a prefill, a prompt that waits for a longer prompt, a prompt that waits for
decodes, a request that waits for the whole of another one, anything that waits for the host. So a sentence is cut once, at the word
that joins the two ends, and each end is named by a small lexicon; no verdict has phrases of its own here.

Invariants: an end that the lexicon does not know gives no relation; a sentence that denies ("does not stop") gives none.
"""

# ruff: noqa: E501  (one pattern a line)

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum


class End(Enum):
    HOST = "host"
    SLOT = "slot"
    MEMORY = "memory"
    PREFILL = "prefill"
    DECODE = "decode"
    PROMPT = "prompt"
    REQUEST = "request"


#: The first row that fits names the end. A short or waiting prompt is a PROMPT; a long one, or its computation, is a PREFILL.
_LEXICON: tuple[tuple[End, str], ...] = (
    (End.HOST, r"\bv?cpus?\b|\bcores?\b|event[ -]loop|tokeni[sz]\w*|\bgil\b|front[- ]?end|(api|http) (server|layer)|\bswap\w*|page (cache|faults?)|\bdisk\b|\bquota\b|\bthreads?\b|\bhost\b"),
    (End.SLOT, r"\bslots?\b.{0,24}\b(free|available|open)\b|\bfree slots?\b|semaphore"),
    (End.MEMORY, r"\bkv\b|\bmemory\b|\bpool\b|\bblocks\b|evict\w*|preempt\w*|retract\w*"),
    (End.PROMPT, r"\b(short|small|tiny|little|cheap|quick|queued|waiting|pending|other|others'|later|next|second)\b[\w' -]{0,24}\b(prompts?|requests?|messages?|chats?|users?|slots?|sessions?|ones)\b|\bnewcomers?\b|\bqueue\b|\bprompts of (the )?other\w*|\bttft\b|\b(requests?|prompts?|sessions?|users?) (that|which|who) (come|arrive|wait|join)\w*"),
    (End.PREFILL, r"prefill\w*|prompt[- ]processing|ingest\w*|\b(prompt|context)s?\b.{0,16}\b(process|comput|ingest)\w*|\b(long|longer|huge|large|larger|big|bigger|massive|giant|oversized|whole|entire|new|incoming|cold|heavy|one)\b[\w' -]{0,20}\b(prompts?|requests?|contexts?|documents?|ones?)\b|\b(large|long|big|huge) (one|ones)\b|\bprompts?\b"),
    (End.DECODE, r"decod\w*|generat\w*|\bstream\w*|\banswers?\b|\brunning\b|\bactive\b|in[- ]flight|\blanes?\b|\btokens?\b|\brepl(y|ies)\b"),
    (End.REQUEST, r"\bthe (second|next|other|third)\b|\b(requests?|calls?|users?|callers?|clients?|chats?|dialogs?|quer(y|ies)|questions?|conversations?)\b"),
)  # fmt: skip

#: Joins a sufferer (left) to its cause (right); at the start of a sentence the two stand the other way round, parted by a comma.
_WAITS = re.compile(
    r"\b(until|till|behind|while|whenever|when|during|as soon as|as long as|once|because of|due to|after|before the|only (?:in|after|when|if)"
    r"|for (?:as long as|the (?:whole|entire|full)|its (?:whole|entire)|all of)|without a|by (?:a|the|one|another)|waits? (?:out|for)|wait for)\b"
)
#: Joins a cause (left) to its sufferer (right).
_HURTS = re.compile(
    r"\b(blocks?|stalls?|freezes?|starves?|halts?|pauses?|delays?|interrupts?|holds? (?:up|back)|slows?(?: down)?|stops?|throws?|crowds? out|shuts? out)"
    r" (?=the\b|all|an?\b|every|any|each|other|those|these|its\b|their|token|generat|decod|running|active|live|our\b|waiting|queued|short)"
)
#: Where the cause is only pointed at, it is what the clause before speaks of.
_POINTS = re.compile(r"\s*(it|that|them|this|those)\b\W*$")
_CLAUSES = re.compile(r",? and |, so |, ")
_STANDS = re.compile(
    r"\b(stop\w*|stall\w*|block\w*|freez\w*|froze\w*|starv\w*|halt\w*|paus\w*|hang\w*|wait\w*|stuck|held|delay\w*|defer\w*|slow\w*|suspend\w*"
    r"|holds? [\w ]{1,16} back|pil\w* up|queue\w*|pending|nothing|no (?:tokens?|progress|step)|never|not (?:scheduled|touched|admitted|started|served|put)|only|first token|collaps\w*|drops?|rarely)\b"
)
_DENIES = re.compile(
    r"\b(does not|do not|don't|doesn't|did not|no longer|never) (stop|stall|block|freeze|starve|pause|wait|slow)\w*"
)


_COMPILED = tuple((end, re.compile(pattern)) for end, pattern in _LEXICON)


#: As a cause, "other requests" are no prefill: a prompt causes something by being long or new.
#: The one other request, or its end, is a REQUEST whatever it is doing.
_ONE = r"\b(the|that|another|this) (one|first|other|previous|earlier)\b(?! \w*(prompt|prefill|decod))|\b(it|first|previous)\b.{0,16}\b(done|finish\w*|ended|return\w*|complet\w*|over|answered|served)\b"
_CAUSES = ((End.REQUEST, re.compile(_ONE)), *(row for row in _COMPILED if row[0] is not End.PROMPT))


def name_end(text: str, cause: bool = False) -> End | None:
    """Which end of a relation some words speak of."""
    return next((end for end, pattern in (_CAUSES if cause else _COMPILED) if pattern.search(text)), None)


def _cuts(text: str) -> Iterator[tuple[str, str]]:
    """(sufferer, cause) as words, the likeliest reading first."""
    first = _WAITS.match(text) or _WAITS.match(text, 2)
    if first and "," in text:
        cause, rest = text[first.end() :].split(",", 1)
        sufferer = _CLAUSES.split(rest)[0]
        inner = _WAITS.search(sufferer)
        yield sufferer[: inner.start()] if inner else sufferer, cause
        return
    if hurts := _HURTS.search(text):
        yield text[hurts.end() :], text[: hurts.start()]
    for joined in _WAITS.finditer(text):
        sufferer, cause = text[: joined.start()], text[joined.end() :].split(",")[0]
        if not _STANDS.search(text[: joined.end()]):
            continue
        clauses = _CLAUSES.split(sufferer)
        if _POINTS.match(cause) and len(clauses) > 1:
            cause = " ".join(clauses[:-1])
        if len(clauses) > 1 and not _STANDS.search(clauses[-1] + joined.group(0)):
            continue
        yield clauses[-1] if name_end(clauses[-1]) else sufferer, cause


def relation(sentence: str) -> tuple[End, End] | None:
    """(sufferer, cause) of one sentence, or None. A prompt that suffers is a PROMPT, one that causes a PREFILL."""
    text = sentence.lower()
    if _DENIES.search(text):
        return None
    for sufferer, cause in _cuts(text):
        ends = name_end(sufferer), name_end(cause, cause=True)
        if ends[0] and ends[1]:
            return (End.PROMPT if ends[0] is End.PREFILL else ends[0], ends[1])
    return None


def relations(sentences: Iterable[str]) -> dict[tuple[End, End], str]:
    """Each relation that a report states, with the sentence that states it."""
    found: dict[tuple[End, End], str] = {}
    for sentence in sentences:
        if ends := relation(sentence):
            found.setdefault(ends, sentence.strip())
    return found
