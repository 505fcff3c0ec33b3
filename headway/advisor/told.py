"""What a report says in words, as evidence: who waits for whom, and statements about text, caches, clients and options.

Tests of hints.py; each answers with its line of evidence, or None.
"""

# ruff: noqa: E501  (one pattern a line)

from __future__ import annotations

import re

from headway.advisor.derived import Derived
from headway.advisor.evidence import Evidence
from headway.advisor.facts import Facts
from headway.advisor.relations import End


def _told(f: Facts, sufferer: tuple[End, ...], cause: tuple[End, ...]) -> Evidence | None:
    """The sentence that states this relation."""
    for (who, why), sentence in f.relations.items():
        if who in sufferer and why in cause:
            return [f"the report says: {sentence!r}"]
    return None


def _text(f: Facts, *patterns: str) -> Evidence | None:
    """Words of the whole report that carry all of the patterns."""
    hits = [re.search(pattern, f.words, re.IGNORECASE) for pattern in patterns]
    return [f"the report says: {', '.join(hit.group(0) for hit in hits if hit)!r}"] if all(hits) else None


def _own_schedule(f: Facts) -> bool:
    """Not an engine that is known to give running decodes a token in every step."""
    return f.engine.schedule != "mixed" or f.engine.derived


def prompt_waits_for_prompt(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT,), (End.PREFILL,))


def prompt_waits_for_decodes(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT,), (End.DECODE,))


def decode_waits_for_prefill(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.DECODE,), (End.PREFILL,))


def decode_waits_for_prefill_in_turn(f: Facts, d: Derived) -> Evidence | None:
    own = f.engine.schedule == "alternate" or f.engine.derived or (f.engine.family == "other" and not f.chunk)
    return decode_waits_for_prefill(f, d) if own else None


def decode_waits_for_mixed_chunk(f: Facts, d: Derived) -> Evidence | None:
    own = f.engine.schedule == "mixed" and not f.engine.derived and f.chunk
    told = decode_waits_for_prefill(f, d) if own else None
    return [*told, f"{f.engine.title} gives each stream one token a step of up to {f.chunk:g} prompt tokens"] if told else None


def no_decode_between(f: Facts, d: Derived) -> Evidence | None:
    """Steps or batches of prefill, told to have no decode in them or between them."""
    never = r"\b(no|without a?|rarely|never|seldom|hardly|not|nothing)\b[\w ]{0,16}\bdecod\w+|decod\w+[\w ]{0,16}\b(rarely|never|seldom|hardly|not)\b"
    turns = r"|(either )?prefills? (xor|or) decod\w*|prefill and decode (are separate|exclude)"
    told = next(
        (s for s in f.sentences if re.search(never + turns, s, re.I) and re.search(r"prefill|prompt|chunk", s, re.I)), None
    )
    return [f"the report says: {told.strip()!r}"] if told and _own_schedule(f) and not f.says("only_decodes") else None


def prompts_go_first(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"(prefills?|prompts?|new requests?)\b[\w ]{0,24}\b(first|priority|before (any )?decod\w*)\b")
    return told if told and _own_schedule(f) and decode_waits_for_prefill(f, d) else None


def lost_race(f: Facts, d: Derived) -> Evidence | None:
    """Prefill and decode compete for a lock, and decode stands for longer than a chunk."""
    told = _text(f, r"\b(lock|mutex|race)\b")
    return [*told, *f.cite("freeze", "longest_gap")] if told and (d.gap or 0) > 0.5 else None


def waits_for_memory(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"preempt\w*|evict\w*|retract\w*")
    full = (f.high("kv_usage") or 0) >= 0.97
    return [*told, *f.cite("kv_usage")] if told and full else _told(f, (End.PROMPT, End.REQUEST, End.DECODE), (End.MEMORY,))


def work_thrown_away(f: Facts, d: Derived) -> Evidence | None:
    """Work is thrown away for want of memory."""
    memory, lost = (
        r"\bkv\b|\bmemory\b|\bpool\b|\bblocks?\b",
        r"thrown (away|out)|dropped|discard\w*|evict\w*|kicked out|preempt\w*",
    )
    told = next(
        (s for s in f.sentences if all(re.search(p, s, re.I) for p in (memory, lost, r"prefill\w*|requests?|sequence|work"))),
        None,
    )
    return [f"the report says: {told.strip()!r}"] if told and not re.search(r"prefix|hits?\b|turn", told, re.I) else None


def decode_always_wins(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"\bdecod\w*\b[\w ]{0,12}\b(wins|always|preferred|goes first|has priority|before any prefill)\b")
    return [*told, *f.cite("newcomer_wait", "ttft")] if told and (f.has("newcomer_wait") or f.has("ttft")) else None


def disk_in_the_loop(f: Facts, d: Derived) -> Evidence | None:
    """Weights or states come from disk or swap while tokens are made."""
    return _text(
        f, r"\b(disk|ssd|nvme|page ?file|swap\w*|paging)\b", r"\b(every|each|constant\w*|all the time|synchronous|thrash\w*)\b"
    )


def never_hits(f: Facts, d: Derived) -> Evidence | None:
    cached, never = (
        r"\b(prefix|prompt)\b[\w ]{0,8}\bcach\w*|\bcach\w*\b[\w ]{0,12}\bhits?\b",
        r"\bnever\b|\bbreaks?\b|\bno longer\b|\bdoes not\b",
    )
    told = next((s for s in f.sentences if re.search(cached, s, re.I) and re.search(never, s, re.I)), None)
    return [f"the report says: {told.strip()!r}"] if told else None


def waits_for_host(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.HOST, End.DECODE, End.PROMPT, End.REQUEST), (End.HOST,))


def one_after_another(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT, End.REQUEST), (End.REQUEST,))


def waits_for_slot(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT, End.REQUEST, End.DECODE), (End.SLOT,))


def front_changes(f: Facts, d: Derived) -> Evidence | None:
    """The start of the prompt is another one each time, so no prefix is ever the same."""
    return _text(
        f,
        r"system prompt|prefix\w*|first line|start of the prompt|front of the prompt",
        r"\b(time|date|time ?stamp|clock|uuid|random|nonce)\b|chang\w*|differ\w*|never equal|rebuilt|dynamic",
        r"\b(each|every|all|no|never|whole|again)\b",
    )


def cut_and_sent_again(f: Facts, d: Derived) -> Evidence | None:
    return _text(
        f,
        r"cancel\w*|time[- ]?outs?|timed out|gives? up|gave up|abort\w*|disconnect\w*|deadline|no response|watchdog",
        r"(same|identical) (prompt|request|body|message)\w* (is |are |comes? |was )?(sent |issued )?(again|anew)|(again|re)[- ]?(sen[dt]|submit|issue|post)\w*|retr(y|ies|ied)\b|then the same (prompt|request)|(sen[dt]s?|issues?|posts?|repeats?) the (same|identical) \w+|sen[dt]s? (it |them )?(again|anew|once more)",
    )


def answers_worsen(f: Facts, d: Derived) -> Evidence | None:
    """What is answered gets worse with company: told, or an accuracy that falls as streams are added."""
    accuracy = f.numbers.get("accuracy", [])
    if len(accuracy) >= 2 and accuracy[-1] < 0.95 * accuracy[0] and len(f.numbers.get("running", [])) == len(accuracy):
        return f.cite("running", "accuracy")
    quality = r"\b(answers?|outputs?|texts?|completions?|translations?|scores?|accuracy|facts|responses?|replies)\b"
    worse = r"\b(wrong|worse|falls?|fell|drops?|los(es?|t)|degrad\w*|unreadable|garbage|nonsense|differs?|incorrect|corrupt\w*|broken|collapses? into|loops?)\b"
    company = r"concurren\w*|at once|together|batch\w*|more than one|parallel|simultaneous\w*|beside"
    close = rf"{quality}[\w ]{{0,20}}{worse}|{worse}[\w ]{{0,20}}{quality}|translation loses"
    return _text(f, close, company)


def set_but_not_used(f: Facts, d: Derived) -> Evidence | None:
    told = _text(
        f,
        r"\b(is|are|was|were) (not|never) (used|applied|honou?red|respected|read)|overrid\w*|\bis always \d|ignor\w*|(flag|option|setting|argument|parameter)\b[\w ]{0,16}\b(dropped|lost|discarded|swallowed|not (passed|wired)|never reach\w*)",
    )
    return told if told and f.options else None
