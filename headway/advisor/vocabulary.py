"""How people name what they saw: tables from field names and phrases to the project's names.

QUANTITIES: (name, dimension, pattern of the field's name, pattern it must not have). The first row that fits counts.
A dimension fixes the unit: "s" seconds (fields in ms are divided by 1000, minutes multiplied by 60), "rate" tokens a
second, "tokens", "count", "ratio" (percent divided by 100). SIGNALS: statements in free text.
Names are lower-case words joined by one underscore.
"""

from __future__ import annotations

import re

RATE = r"(tps|tok_s|toks|tokens?_per_s\w*|tokens?_s|tok_per_s\w*|t_s|throughput|rate|speed)"
_NOT_SPEED = r"hit|accept|request_rate"

QUANTITIES: tuple[tuple[str, str, str, str], ...] = (
    # what the cache and the memory did
    ("hit_rate", "ratio", r"hit(_rate|s_pct|_ratio|_pct|_percent)?$|cache_hit", r"tokens"),
    ("cached_tokens", "tokens", r"cached(_prompt)?_tokens?|tokens_cached|reused_tokens|hit_tokens|n_past$", ""),
    ("preemptions", "count", r"preempt|evicti?on|retract|swapped_out", r"interval|tokens"),
    ("kv_usage", "ratio", r"kv.*(usage|util|used|full|perc)|cache_usage|token_usage", r"hit"),
    # resending clients
    ("copies", "count", r"cop(y|ies)|duplicate|resend|resent|retr(y|ies)|attempts|identical_requests", ""),
    ("client_timeout", "s", r"(client|read|idle|silence|request|agent).*(timeout|limit)|timeout", r"count"),
    ("answer_after", "s", r"answer(ed)?_after|response_after|reply_after", ""),
    # the host
    ("cpu_cores", "count", r"cpu_?(cores?|count|limit|s)$|vcpus?$|^cores$", r"pct|util"),
    ("cpu_usage", "ratio", r"cpu.*(pct|util|usage|percent|load|steal)", r"kv"),
    ("swap_used", "ratio", r"swap", r"tps|space|preempt"),
    ("ttft_change", "ratio", r"ttft_change|ttft_delta", ""),
    # counts
    ("prefill_batches", "count", r"prefill_(batch|step)(es|s)", ""),
    ("decode_batches", "count", r"decode_(batch|step)(es|s)", ""),
    ("slots", "count", r"slots|parallel|max_num_seqs|max_running|max_batch_size|batch_limit|max_concurren|^np$|num_parallel", r"tensor|pipeline|data"),
    ("intruders", "count", r"^intruders$|long_prompts$|prefilling$", ""),
    ("victims", "count", r"victims$|decoding$|live(_streams)?$", ""),
    ("running", "count", r"running", r"tps|max"),
    ("waiting", "count", r"waiting$|queued?$|pending|queue_(reqs?|len|depth)", r"_s$|_ms$"),
    ("models", "count", r"^models$", ""),
    ("stalls", "count", r"^stalls$|stall_count", ""),
    # rates
    ("victim_share", "ratio", r"share|fraction_kept|retained", ""),
    ("prefill_rate", "rate", rf"(prefill|pp).*{RATE}|^pp(_tps)?$", r"prompt|" + _NOT_SPEED),
    ("prompt_rate", "rate", rf"prompt.*{RATE}|input.*{RATE}", _NOT_SPEED),
    ("lane_max", "rate", rf"(lane|stream|request|slot)?.*{RATE}.*(max|fast\w*|best|high\w*)$|(max|fast\w*|best)_.*{RATE}", _NOT_SPEED),
    ("lane_min", "rate", rf"(lane|stream|slot|client|slow\w*)\w*_{RATE}.*min$|slow(est)?_.*{RATE}", r"overlap|" + _NOT_SPEED),
    ("solo_rate", "rate", rf"(solo|alone|single|base\w*|idle|normal\w*|before|healthy|expected|isolated|unloaded|quiet|after|usual|clean).*{RATE}|{RATE}.*(solo|alone|single|base\w*|idle|normal|before|healthy|expected|after|usual)", _NOT_SPEED),
    ("overlap_rate", "rate", rf"(overlap|during|beside|concurrent|worst|while|under|contend|stall|victim|degrad|mixed|with_|per_request|per_user|per_stream|each|decode|min|stream|loaded|slow).*{RATE}|{RATE}.*(overlap|during|beside|concurrent|worst|while|under|victim|mixed|min|loaded|each|per_)", r"aggregate|total|" + _NOT_SPEED),
    ("aggregate_rate", "rate", rf"(aggregate|total|sum|overall|output|system).*{RATE}|{RATE}.*(total|aggregate)", _NOT_SPEED),
    ("generation_rate", "rate", rf"(gen|generation|tg|eval)\w*_{RATE}", _NOT_SPEED),
    ("rate", "rate", rf"^{RATE}$", _NOT_SPEED),
    # seconds
    ("step_time", "s", r"(seconds|s|ms|time)_(per|a)_(chunk|step|batch|iteration)|(step|chunk|iteration|batch)_(time|s|ms|seconds|duration)\w*", ""),
    ("seconds_per_token", "s", r"(seconds|s|ms)_(per|a)_tok(en)?|tpot", r""),
    ("p99_gap", "s", r"p9\d.*(gap|itl)|(gap|itl).*p9\d", ""),
    ("normal_gap", "s", r"(normal|solo|alone|base\w*|median|p50|idle|typical|usual).*(gap|itl|step)|(gap|itl).*(normal|solo|median|p50|mean|alone)", ""),
    ("longest_gap", "s", r"(worst|max|longest|largest|peak).*(gap|itl|stall|pause|freeze|silence)|(gap|itl|stall|pause|freeze|silence).*(max|worst|longest|peak)", ""),
    ("itl", "s", r"^itl|inter_token", ""),
    ("freeze", "s", r"freeze|frozen|froze|stall|pause|hang|hung|blocked|silen(t|ce)|stuck|outage|gap", r"count|s$(?<!_s)(?<!_ms)"),
    ("ttft_alone", "s", r"(intruder|ttft|newcomer|first_token|prefill|long_prompt).*(alone|solo|base\w*|idle|t0|cold_only)|(alone|solo|base\w*|idle).*(ttft|prefill_s)|^t0", r"tokens"),
    ("newcomer_wait", "s", r"(newcomer|new_request|short|small|follow\w*|second|waiter)\w*_(wait|ttft|latency|first_token)|wait(ed|ing)?_?(time|s|ms|max)|queue(d)?_(time|s|ms)", ""),
    ("ttft", "s", r"ttft|first_token|prefill_(s|ms|time|wall)|intruder_wall", r"tokens$"),
    ("victim_wall", "s", r"victim_(wall|total|time|e2e)", ""),
    ("minutes", "s", r"^(minutes|duration|window)", ""),
    # tokens
    ("newcomer_tokens", "tokens", r"(newcomer|short|small|new_request|follow\w*)\w*_(tokens|prompt)", r"max"),
    ("intruder_tokens", "tokens", r"(intruder|prompt|context|input|long|prefill|uncached)\w*_(tokens?|len(gth)?)|isl|^context|^prompt_len|^prompt$|^n_prompt", r"max_model|max_num|chunk|small|cached_tok|threshold|tps|max_prefill|batch"),
    ("slower", "ratio", r"slow(er|down)|factor|times_slower", ""),
)  # fmt: skip

#: Options that bound the prefill tokens of one step.
CHUNK_OPTIONS: tuple[str, ...] = (
    "long_prefill_token_threshold",
    "chunked_prefill_size",
    "prefill_chunk_size",
    "chunk_size",
    "chunk",
    "prefill_step_size",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_prefill_tokens",
    "max_batch_prefill_tokens",
    "max_num_tokens",
    "n_batch",
    "batch_size",
    "ubatch_size",
    "n_ubatch",
    "quantum",
    "quanta",
)

#: Options that put decode-only time between chunks; larger protects decodes more.
INTERVAL_OPTIONS: tuple[str, ...] = (
    "prefill_schedule_interval",
    "prefill_decode_interval",
    "decode_priority_cadence",
    "decode_interleave_decode_steps",
    "decode_steps_between",
    "prefill_delayer",
    "hold",
    "interval",
    "cadence",
    "pace_steps",
)

SIGNALS: dict[str, str] = {
    "corrupt": r"corrupt|garbage|gibberish|garbled|nonsens|wrong (text|tokens?|outputs?|answers?)|"
    r"((text|outputs?|tokens?|answers?)\b.{0,40}\b(change[sd]?|differ(s|ent)?|diverge[sd]?))|mismatch|not (bit.?)?identical|"
    r"mixed[- ]up (text|answers?)|leaks? (into|between)|!!!!",
    "resend": r"re-?sen[dt]|\bretr(y|ies|ied)\b|same (prompt|request) (again|queued|twice|four)|duplicat|silence limit|"
    r"(client|read|idle|request|stream|sdk|proxy|agent)\S* ?(side )?time.?outs?|times? out|timed out|gives? up|disconnects? and",
    "preempted": r"preempt|evict(ed|ion)|retract|(kv|cache)\S* (is |was |gets? )?(full|exhaust|pressure)|out of kv|recomputed?\b|"
    r"not enough (kv|memory|blocks)|kv\S* (usage|cache)?.{0,12}(100|9[5-9])(\.\d)? ?%",
    "cache_missed": r"\b(no|0(\.0)? ?%|zero|never any) (prefix )?(cache )?(hits?|reuse)|cache (never|does not|doesn.t|not) (hit|reus)|"
    r"hit[- ]?rate.{0,12}\b0(\.0)? ?%|re-?process(es|ed|ing)? (the )?(whole|full|entire|all)|full prompt re-?process|"
    r"re-?(prefill|process|comput|evaluat)\w* .{0,30}(every|each|from scratch|whole|entire)|(every|each) (turn|request|message|call)"
    r".{0,40}(cold|full|whole|scratch|entire)|cold prefill|cache (is )?(invalidated|discarded|cleared|lost)|prefix (changes|differs|is different)",
    "host": r"swap(ping|ped)? (in|to|memory|space|partition|file)|\bin swap\b|page[- ]?(cache|faults?)|"
    r"cpu (load|bound|steal|starv\w*|contention|throttl\w*|limit|quota|cores?|at 100|usage|pinned)|few(er)? cores|\b[12] cpus?\b|\b[12] cpu cores|"
    r"another (job|process|build|container|program)|\bother (jobs?|process\w*)\b|nois(y|e) neighbou?r|event[- ]loop|\bgil\b|host (cpu|memory|load|process)|"
    r"out of (ram|host memory)|oom[- ]kill|tokeni[sz](er|ation) (blocks|on|takes)|front[- ]?end (process )?(blocks|starv|busy)|numa",
    "protects_decodes": r"(decode|stream|token)s?[- ](debt|first|priorit\w+|protect\w*)|debt|prefill (gate|is gated|throttl\w*|held|hold|defer\w*|delay\w*)|"
    r"(gate|hold|throttl\w*|defer\w*|delay\w*|protect\w*|prioriti[sz]\w*)\b.{0,30}(prefill|decode|running|newcomer|new request)",
    "newcomer_starves": r"(newcomer|new (request|prompt|user|session)|short (request|prompt)|second (request|user)|queued|waiting|incoming)\S*.{0,60}"
    r"(starv|never|nothing|forever|waits?\b|stuck|not (admitted|started|scheduled)|minutes)|prefills? (starv|never|wait|not admitted)|"
    r"ttft (explode|grow|climb|unbounded)",
    "unfair": r"one (stream|request|lane|client|session)?.{0,16}(served|runs?|progress\w*|gets).{0,40}(starv|others?|rest|nothing|wait)|starved|unfair|"
    r"head[- ]of[- ]line|behind (a|the|one) (long|big|huge|large)?\s?(prefill|prompt|request)|\block\b|some (streams|requests|lanes) .{0,20}(zero|no tokens|starv)",
    "no_effect": r"no (visible |measurable )?(effect|influence|impact|difference|change)|no-?op\b|does(n.t| not) (do anything|help|change|apply|work)|"
    r"do(es)? nothing|\bignored\b|silently|not (enforced|honou?red|respected|implemented|wired|applied)|never (read|used|applied)|has no",
    "mixed_is_costly": r"mixed (step|batch)\w*.{0,60}(cost|slow|expens|fixed|kernel|eager|fall|worse|slower)|"
    r"(loses?|lost|without|no|falls? (off|out of)) (the )?(full )?cuda ?graphs?|fragment|(small(er)?|tiny|shrinking|lower\w*) (chunk|prefill|batch)\w* "
    r"(do(es)? not|don.t|did not|didn.t|make it worse|no) ?(help)?|regardless of (the )?(chunk|prompt|prefill)|falls? back to eager|eager (for|when|in) mixed|"
    r"fixed (cost|overhead)|per[- ](prefill|chunk|interruption) overhead|interrupt|prefill kernel (for|on) decode",
    "whole_prefill": r"(whole|entire|full) prefill|until (the |its |that )?(prefill|prompt|processing)\w* .{0,20}(done|finish|complete|over|ends?)|"
    r"prefill(s|ing)?.{0,30}(block|monopoli|stop|first|precede|halt|exclusive)\w*|no decode (step|batch|token)|stops? decod|decod\w+ (stops?|halts?|pauses?)",
    "follows_chunk": r"(depends on|proportional to|scales with|follows|grows with|as long as|equal to|set by) (the |its )?(prefill )?(batch|chunk|step|n_batch|max_num)",
    "simultaneous": r"at the same time|simultaneous|(two|both|several) requests (at once|together)|two at once|title (gen|request)|asks? for a title|"
    r"background (request|task)|in parallel with (the|its)",
    "slows_others": r"(slow|freez|froze|stall|block|pause|starv|stop|degrad|hang|drop|stutter|halt)\w*.{0,60}(other|all|every|stream|generation|decod|user|slot|session|answer|running)|"
    r"(other|all|every|stream|generation|decod|user|slot|session|answer|running)\w*.{0,60}(slow|freez|froze|stall|block|pause|starv|stop|hang|drop|stutter|halt)",
    "only_decodes": r"no (prefill|prompt)\w*|both (are )?decoding|all (are )?decoding|only decod|pure decode|decode[- ]only|without (any )?prefill",
    "small_prefills": r"small (backfill )?prefills?|prefill tokens small|prefill small|short prefills",
    "one_slot": r"(one|single) slot|no free slot|queued until|ran one after|sequential\w*|never ran together|max.?num.?seqs.{0,4}1\b|batch (size|limit) 1\b|-np 1\b|parallel 1\b",
}

COMPILED_SIGNALS = {name: re.compile(pattern, re.IGNORECASE | re.DOTALL) for name, pattern in SIGNALS.items()}
COMPILED_QUANTITIES = tuple(
    (name, dimension, re.compile(yes), re.compile(no) if no else None) for name, dimension, yes, no in QUANTITIES
)
