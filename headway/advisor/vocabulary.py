"""How people name what they saw: tables from field names and phrases to the project's names.

QUANTITIES: (name, dimension, pattern of the field's name, pattern it must not have). The first row that
fits counts. A dimension fixes the unit: "s" seconds (fields in ms are divided by 1000, minutes multiplied
by 60), "rate" tokens a second, "tokens", "count", "ratio" (percent divided by 100). SIGNALS: statements in
free text. Names are lower-case words joined by one underscore.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

import re

RATE = r"(?<![a-z])(tps|tok_s|toks|tokens?_per_s\w*|tokens?_s|tok_per_s\w*|t_s|throughput|rate|speed)"
_NOT_SPEED = r"hit|accept|request_rate"

QUANTITIES: tuple[tuple[str, str, str, str], ...] = (
    # what the cache and the memory did
    ("cache_queries", "tokens", r"cache_quer(y|ies)|(prefix|cache)\w*_(lookups?|queries)", r"rate|hit"),
    ("cache_hits", "tokens", r"cache_hits(_total|_tokens)?$", r"rate|pct|ratio|percent"),
    ("hit_rate", "ratio", r"hit(_rate|s_pct|_ratio|_pct|_percent)?(_pct|_percent)?$|cache_hit", r"tokens|with_hit|requests|_count"),
    ("hit_rate", "ratio", r"(kept|reused|cached|found|hit)_(share|ratio|fraction)|f_keep|prefix_similarity", r"victim|stream|decod|rate_"),
    ("found_tokens", "tokens", r"^prefix_tokens_found$", ""),
    ("cached_tokens", "tokens", r"cached(_prompt)?_tokens?|tokens_cached|reused(_tokens)?$|hit_tokens\w*|n_past$|cached_(len|n)\w*$|n_cached|cache_read\w*|^hits$|^cached$", ""),
    ("preemptions", "count", r"preempt|evicti?on|retract|swapped(_out|_reqs|_requests)?$|recompute", r"interval|threshold|mode"),
    ("kv_usage", "ratio", r"kv.*(usage|util|used|full|perc)|cache_usage|token_usage", r"hit"),
    ("corrupted", "count", r"(first_)?diff(ers?|erence)?(_at)?_(token|char\w*|position)|garbl|unreadable|illegible|nonsens|corrupt|diverg|gibberish|wrong_(answers?|outputs?|tokens?|texts?)|(outputs?|answers?|texts?|runs|rows|requests)_(that_)?(differ|changed|wrong|mismatch)\w*|mismatch(es|ed)", r"alone|solo|base|without|sequential|isolated|single"),
    ("good_answers", "count", r"^(good|clean|correct|right|passed|ok|matching|equal)(_\w*)?$|_(ok|correct|passed)$", r"alone|solo|s$(?<!answers)(?<!outputs)(?<!texts)|tps|rate|ms"),
    ("all_answers", "count", r"^of$|^(out_of|answers|cases|runs|trials|total_answers|n_answers)$", ""),
    ("distinct_answers", "count", r"(distinct|different|unique)_(answers?|outputs?|completions?|texts?|hashes|results)", ""),
    ("match_rate", "ratio", r"(exact|output|answer|text)_match(es)?_(rate|ratio|pct|share)|identical_(answers|outputs|share|rate|pct)\w*", r"prefix|cache|unit|alone|solo"),
    ("accuracy", "ratio", r"accuracy|^scores?$|_scores?$", r"accept|draft|hit|alone|solo"),
    ("host_share", "ratio", r"(tokeni[sz]\w*|cpu|host|scheduler|python|preprocess\w*|front_?end)\w*_share", r"kv|cache"),
    # resending clients
    ("copies", "count", r"cop(y|ies)|duplicate|resend|resent|retr(y|ies)|attempts|(identical|same)_(requests?|prompts?)|times_sent", r"_(s|ms|tps|tokens)$"),
    ("client_timeout", "s", r"(client|read|idle|silence|request|agent|stream).*(timeout|limit|deadline)|timeout|deadline", r"count"),
    ("answer_after", "s", r"(answer|response|repl\w+|abort\w*)_after", ""),
    # the host
    ("gpu_usage", "ratio", r"gpu.*(util|usage|busy|pct|percent|load)|(util|usage)\w*_gpu|^sm_", r"kv|cache|mem"),
    ("cpu_throttled", "ratio", r"throttl", r"tokens|prefill|_s$|_ms$"),
    ("cpu_quota", "count", r"(cpu|core)\w*_quota|quota_(cpu|core)s?|cpu_limit|limit_cores", ""),
    ("cpu_cores", "count", r"cpu_?(cores?|count|limit|s)$|vcpus?$|^cores$", r"pct|util"),
    ("cpu_usage", "ratio", r"cpu.*(pct|util|usage|percent|load|steal)", r"kv"),
    ("swap_used", "ratio", r"swap", r"tps|space|preempt|swapped"),
    ("ttft_change", "ratio", r"ttft_change|ttft_delta", ""),
    # counts
    ("prefill_batches", "count", r"prefill_(batch|step|chunk)(es|s)", r"size|tokens|_s$|_ms$|each|per_"),
    ("decode_batches", "count", r"decode_(batch|step)(es|s)", r"size|tokens|_s$|_ms$|each|per_"),
    ("slots", "count", r"slots|parallel|max_num_seqs|max_running|max_batch(_size)?$|batch_limit|max_concurren|^np$|num_parallel", r"tensor|pipeline|data"),
    ("intruders", "count", r"^intruders$|long_prompts(_in_front|_ahead)?$|prefilling$", ""),
    ("victims", "count", r"victims$|(background|live|decoding|running)_(streams|requests)$|decoding$|live(_streams)?$|^(n_|running_)?decod(es|ers)$", ""),
    ("running", "count", r"running|^(concurrency|concurrent|streams|n_streams|concurrent_\w*|parallel_streams|sessions|users|clients|npl|n_parallel|parallel_requests|batch_rows)$", r"tps|max|share"),
    ("waiting", "count", r"waiting$|queued?$|pending|queue_(reqs?|len|depth)", r"_s$|_ms$"),
    ("page_faults", "count", r"(major|page)\w*faults?", r"minor"),
    ("models", "count", r"^models$", ""),
    ("stalls", "count", r"^stalls$|stall_count", ""),
    # rates
    ("victim_share", "ratio", r"(victim|stream|decod\w*|rate|solo|live)_share|^share(_kept)?$|share_kept|fraction_kept|rate_retained", r"prefill|prompt|cache"),
    ("lane_rates", "rate", rf"^(lane|stream|slot)s?_{RATE}s?$|^{RATE}_(by|per|of)_(lane|stream|slot)s?$", _NOT_SPEED),
    ("overlap_rate", "rate", rf"{RATE}.*(during|beside|while|under|with|next_to|overlap)|(overlap|during|beside|while)\w*_{RATE}", r"aggregate|total|" + _NOT_SPEED),
    ("prefill_rate", "rate", rf"(prefill|pp).*{RATE}|^pp(_tps)?$", r"prompt|" + _NOT_SPEED),
    ("prompt_rate", "rate", rf"prompt.*{RATE}|input.*{RATE}", r"tokens$|" + _NOT_SPEED),
    ("lane_max", "rate", rf"(lane|stream|request|slot)?.*{RATE}.*(max|fast\w*|best|high\w*)$|(max|fast\w*|best)_.*{RATE}", _NOT_SPEED),
    ("lane_min", "rate", rf"(lane|stream|slot|client|slow\w*)\w*_{RATE}.*min$|slow(est)?_.*{RATE}", r"overlap|" + _NOT_SPEED),
    ("solo_rate", "rate", rf"(solo|alone|single|base\w*|idle|normal\w*|before|healthy|expected|isolated|unloaded|quiet|after|usual|clean|recovered).*{RATE}|{RATE}.*(solo|alone|single|base\w*|idle|normal|before|healthy|expected|after|usual)", r"during|with|" + _NOT_SPEED),
    ("overlap_rate", "rate", rf"(lane|stream|client|slot|request|session|user)_[a-z0-9]{{1,2}}_{RATE}|(concurrent|worst|contend|stall|victim|degrad|mixed|with|per_[a-z]+|each|decode|min|stream|loaded|slow)\w*_{RATE}|{RATE}.*(concurrent|worst|victim|mixed|min|loaded|each|per_)", r"aggregate|total|" + _NOT_SPEED),
    ("aggregate_rate", "rate", rf"^throughput_tps$|(aggregate|total|sum|overall|output|system).*{RATE}|{RATE}.*(total|aggregate)", _NOT_SPEED),
    ("generation_rate", "rate", rf"(gen|generation|tg|eval)\w*_{RATE}", _NOT_SPEED),
    ("rate", "rate", rf"^{RATE}$", _NOT_SPEED),
    # seconds
    ("overlap_time", "s", r"^(overlap|overlap_window|together|overlapped)(_s|_ms|_seconds)$", ""),
    ("mixed_step", "s", r"mixed\w*_(step|iteration|batch|forward)(_ms|_s|_time\w*|_seconds)?$|(step|iteration|batch)\w*_mixed(_ms|_s)?$|step_with_(a_)?(chunk|prefill)\w*(ms|s)$", ""),
    ("mixed_ratio", "ratio", r"mixed_(step_)?(over|vs|per|to)_decode|mixed\w*_(slower|times|factor|ratio)", ""),
    ("ttft_again", "s", r"(again|repeat\w*|second_time|resent|warm|next_turn|same_prompt)\w*(ttft|first_token|prefill)|(ttft|first_token|prefill)\w*(again|repeat|warm|second_time|next_turn)", r"tokens|rate|hit"),
    ("ttft_first", "s", r"(first|cold|initial)_(time_|sent_|run_|turn_)?(ttft|prefill)|ttft\w*_(cold|first|initial)", r"tokens|alone|first_token"),
    ("newcomer_alone", "s", r"(newcomer|new_request|short|small)\w*(alone|solo|idle|base\w*)|(alone|solo|idle|base\w*)\w*_(newcomer|new_request|short|small)", r"tokens|tps"),
    ("normal_gap", "s", r"decode_((only|alone)\w*_)?(step|gap|itl)|(step|gap|itl)\w*_decode_(only|alone)|(normal|solo|alone|base\w*|median|p50|idle|typical|usual).*(gap|itl|step_)|(gap|itl).*(normal|solo|median|p50|mean|alone)", ""),
    ("chunk_counted", "tokens", r"chunk_by_steps|prefill_tokens_(per|a)_step", ""),
    ("step_time", "s", r"(seconds|s|ms|time)_(per|a)_(chunk|step|batch|iteration)|(step|chunk|iteration|batch)_(time|s|ms|seconds|duration)\w*", ""),
    ("mixed_extra", "s", r"(extra|overhead|penalty|fixed)\w*_(mixed|chunk|prefill)|mixed_step_(extra|overhead|penalty|cost)", r"tokens|tps"),
    ("seconds_per_token", "s", r"(seconds|s|ms)_(per|a)_tok(en)?|tpot", r""),
    ("p99_gap", "s", r"p9\d.*(gap|itl)|(gap|itl).*p9\d", ""),
    ("longest_gap", "s", r"(worst|max|longest|largest|peak).*(gap|itl|stall|pause|freeze|silence)|(gap|itl|stall|pause|freeze|silence).*(max|worst|longest|peak)", ""),
    ("itl", "s", r"^itl|inter_token", ""),
    ("freeze", "s", r"freeze|frozen|froze|stall|pause|hang|hung|blocked|silen(t|ce)|stuck|outage|gap", r"telemetry|log_|count|s$(?<!_s)(?<!_ms)"),
    ("ttft_alone", "s", r"(intruder|ttft|newcomer|first_token|prefill|long_prompt).*(alone|solo|base\w*|idle|t0|cold_only)|(alone|solo|base\w*|idle).*(ttft|prefill_m?s)|^t0", r"tokens"),
    ("newcomer_wait", "s", r"(newcomer|new_request|short|small|follow\w*|second|waiter)\w*_(wait|ttft|latency|first_token)|wait(ed|ing)?_?(time|s|ms|max)|queue(d)?_(time|s|ms)", ""),
    ("ttft", "s", r"ttft|first_token|prefill_(s|ms|time|wall)|intruder_wall", r"tokens$"),
    ("victim_wall", "s", r"victim_(wall|total|time|e2e)", ""),
    ("minutes", "s", r"^(minutes|duration|window)", ""),
    # tokens
    ("newcomer_tokens", "tokens", r"(newcomer|short|small|new_request|follow\w*)\w*_(tokens|prompt)", r"max"),
    ("intruder_tokens", "tokens", r"(intruder|prompt|context|input|long|prefill|uncached)\w*_(tokens?|len(gth)?)|isl|^context|^prompt_len|^prompt$|^n_prompt", r"max_model|max_num|chunk|small|cached_tok|threshold|tps|max_prefill|batch"),
    ("slower", "ratio", r"slow(er|down)|factor|times_slower", ""),
)  # fmt: skip

#: Fields and words of a report in which prefill and decode met.
PREFILL_SEEN = re.compile(
    r"prefill|prompts?\b|overlap|intruder|newcomer|ingest|long (request|context|input)|chunk", re.IGNORECASE
)

#: Short and loose names of options.
OPTION_NAMES: dict[str, str] = {
    "b": "n_batch", "batch": "n_batch", "ub": "n_ubatch", "np": "parallel", "n_parallel": "parallel", "num_parallel": "parallel",
    "mnbt": "max_num_batched_tokens", "max_batched_tokens": "max_num_batched_tokens", "batched_tokens": "max_num_batched_tokens",
    "token_budget": "max_num_batched_tokens", "budget": "max_num_batched_tokens", "prefill_chunk": "prefill_chunk_size",
    "prefix_caching": "enable_prefix_caching", "prefix_cache": "enable_prefix_caching", "mixed_chunk": "enable_mixed_chunk",
    "attention_block_size": "block_size", "mamba_block_size": "block_size", "block": "block_size", "align_block": "block_size",
    "threshold": "long_prefill_token_threshold", "policy": "scheduling_policy", "dp": "data_parallel_size",
}  # fmt: skip

#: Options that bound the prefill tokens of one step, by name; others are known by CHUNK_LIKE.
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

#: Option names of engines and forks that are not listed: what they bound shows in the name.
CHUNK_LIKE = re.compile(
    r"chunk|batched_tokens|token_threshold|ubatch|n_batch|prefill_(cap|tokens|size|budget)|prefill\w*_cap$|quantum"
)

#: Options that put decode-only time between chunks; a larger value protects decodes more.
INTERVAL_LIKE = re.compile(
    r"interval|cadence|decode_steps|delay|pace|debt|hold_|_hold$|^hold$|suspend|decode_threshold|interleave"
)


def option_kind(name: str) -> str | None:
    """ "chunk", "interval" or None: what an option bounds."""
    if INTERVAL_LIKE.search(name):
        return "interval"
    return "chunk" if name in CHUNK_OPTIONS or CHUNK_LIKE.search(name) else None


#: A sentence that speaks of no prompt being computed, so that "all streams decode slowly" means just that.
_NO_PREFILL_MEANT = (
    r"^(?!.*(while|during|when|beside|behind|until|after|as soon as)\b.{0,60}(prefill|prompt|newcomer|new request))"
    r"(?!.*(?<!no )(?<!without )prefill(?!ed))(?!.*(long|huge|big|large|new|incoming) (\w+ )?(prompt|request)).*"
)

#: A statement is there when all patterns of one alternative occur in one sentence.
SIGNALS: dict[str, tuple[tuple[str, ...], ...]] = {
    "corrupt": (
        (r"corrupt|garbage|gibberish|garbled|nonsens|unprintable|unreadable|poison|mojibake|word salad|wrong alphabet|!!!!",),
        (r"\b(wrong|incorrect|diverges?|differs?|mismatch\w*|mixed[- ]up|broken|leaks?|not (equal|identical|the same)|unequal)\b", r"\b(texts?|outputs?|answers?|facts?|characters?|words?|completions?|replies)\b"),
        (r"(responses?|answers?|texts?|contents?|outputs?|contexts?|documents?|prompts?|conversations?)\b", r"\b(leak\w*|shows? up|appears?|ends? up|bleed\w*|interleav\w*|mixed up|swapped with|spill\w*)", r"\b(another|other|wrong|each other|foreign)\b|garbage"),
        (r"(vary\w*|different|non-?determin\w*|diverg\w*|changing|unstable|inconsistent) (outputs?|answers?|texts?|results?|completions?)", r"temperature (is )?(0|zero)|concurrent\w*|at once|parallel|beside|batch"),
        (r"(decod\w*|answers?|outputs?|models?)\b", r"(gets?|becomes?) confused|recalls?\b.{0,30}\bwrong\w*|incoheren\w*|loses? coheren\w*|damag\w* the (outputs?|answers?|texts?)"),
        (r"damag\w*", r"(outputs?|answers?|texts?|states?) of (the )?others?"),
        (r"(repetition|endless|degenerate|infinite) loops?|repeat\w* (the same )?(token|word|character)s?|exclamation marks|\bno [\w ]{0,24}(answers?|outputs?|texts?|completions?|replies|results?)[\w ]{0,12}(equal|identical|(the )?same|match)",),
        (r"\b(text|answers?|outputs?)\b( of [\w ]{1,20})? (changes?|is different|differs?)",),
    ),
    "resend": (
        (r"re-?sen[dt]\w*|\bretr(y|ies|ied|ying)\b|re-?submit\w*|duplicat\w*|(sent|added|queued|posted|submitted) (again|twice|once more)", r"time.?outs?|timed? out|times out|gives? up|abort\w*|cancel\w*|disconnect\w*|silen\w*|limit|\bclients?\b"),
        (r"same (prompt|request|body)|identical (prompt|request)s?", r"time.?outs?|gives? up|abort\w*|disconnect\w*|silen\w*"),
        (r"silence limit|(client|sdk|proxy)\S* time.?out",),
    ),
    "preempted": (
        (r"preempt\w*|evict\w*|retract\w*|swapped out", r"\bkv\b|memory|pool|blocks?|cache|recomput\w*|(prefill|comput)ed again|requests are"),
        (r"\bkv\b.{0,20}(runs? out|ran out|full|exhaust\w*|pressure|9[5-9](\.\d)? ?%|100 ?%)",),
        (r"out of (kv|blocks)",),
        (r"\bkv\b|memory|pool|blocks?", r"dropp?(ed|s)?|thrown (out|away)|discard\w*|kicked out|pushed out|freed", r"(prefilled|comput\w*|process\w*|start\w*) (again|anew|over)|from scratch|recomput\w*|re-?prefill\w*"),
    ),
    "cache_missed": (
        (r"re-?us(e|es|ed|ing)", r"\bnothing\b|\bnone\b|\bnever\b|\bno\b"),
        (r"\b(cache|prefix|prompt|hit)\w*", r"(to|is|are|at) (zero|none|nothing|0)\b|finds? nothing|never hits?"),
        (r"nothing (is |was )?(ever )?re-?used",),
        (r"cache|prefix\w*|hit", r"\bmiss(es|ed|ing)?\b|never (hits?|reused?)|no (hits?|reuse)|not (hit|reused?)|nothing (is |was )?(re-?used|hit|cached|kept)|\b0(\.0)? ?%|zero hits?|invalidat\w*|discard\w*"),
        (r"prompt|conversation|context|prefix\w*|history|turn|everything", r"re-?(prefill|process|evaluat|read)\w*|(prefilled|processed|computed|evaluated) (again|anew|from scratch)|from scratch", r"each|every|whole|entire|full|identical|same|always"),
        (r"\b(full|whole|entire)\b.{0,12}\b(prompt|conversation|context|history)\b.{0,20}\b(processed|prefilled|computed|evaluated|read)\b", r"\b(every|each) (time|turn|reply|request|message)"),
        (r"(part|much|most|half) of the (prompt|context|conversation|history)\b.{0,30}\b(processed|prefilled|computed|evaluated) again", r"every|each|before (every|each)"),
        (r"(each|every) (turn|request|message|call)", r"cold|whole|full|entire", r"prompt|prefill|conversation|context"),
    ),
    "host": (
        (r"\bv?cpus?\b|\bcores?\b|tokeniz\w*|tokenis\w*|pre-?process\w*|front[- ]?end|event[- ]loop|\bgil\b|host|\bswap\w*|page[- ]?(cache|faults?)|\bram\b|numa|python process|nvme|disk", r"compet\w*|block\w*|occup\w*|hog\w*|answers nobody|unrespons\w*|busy|starv\w*|slow\w*|faster|bound|bottleneck|conten\w*|throttl\w*|steal|other|another|pressure|idle|saturat\w*|100 ?%|pinned|upgrad\w*|limit\w*|full|few\w*|bind\w*|bound to|doubled|container|in use|misses|out of"),
        (r"nois(y|e) neighbou?r|oom[- ]kill",),
        (r"\b(in|into|to|from|on) (the )?(swap|disk|ssd|nvme|hard drive)\b", r"\b(hangs?|slow\w*|reads?|loaded|all the time|constantly|each token|every token|while it generates)\b"),
        (r"\b(http|api)\b ?(server|layer)?|front[- ]?end", r"direct\w*|bypass\w*", r"fast\w*|quick\w*|no (pause|delay)"),
    ),
    "protects_decodes": (
        (r"decod\w*|running|stream\w*|generation|answers?", r"always (chosen|chooses|picked|preferred|wins|first)|debt|priorit\w*|protect\w*|first|gate|hold|held|throttl\w*|defer\w*|delay\w*|suspend\w*|load stays|busy"),
        (r"prefill|admission|newcomer", r"gate|held|hold|throttl\w*|defer\w*|delay\w*|suspend\w*|debt"),
    ),
    "newcomer_starves": (
        (r"prefills?|newcomers?|(new|waiting|queued|incoming|other|later|second) (requests?|prompts?|prefills?|users?)|(requests?|prompts?|users?) (that|who|which) (arrives?|comes?|joins?)", r"\b(held|holds?|waits?|blocked|deferred|delayed|postponed|kept)\b", r"until\b.{0,40}(answers?|generations?|decod\w*|streams?|running|others?|nobody|no one)\b.{0,40}(end\w*|finish\w*|complet\w*|idle|done|stop\w*|over)|while any\w*|as long as any\w*"),
        (r"newcomers?|(new|short|small|waiting|queued|incoming|fresh) (\w+ )?(requests?|prompts?|users?|sessions?)|second (request|user)|admission|prefills?\b|incoming", r"starv\w*|never|forever|without (a )?(bound|limit)|unbounded|stays? queued|not (admitted|started|scheduled|resum\w*)|closed|closes|suspended|for minutes|queued until"),
    ),
    "no_effect": (
        (r"(no|not|without)\b[\w ]{0,16}\b(effect|influence|impact|difference)\b|(stays?|still|remains?|is) (on|off|enabled|disabled|active)\b.{0,24}(although|even though|despite|when|with)|no-?op\b|does(n.t| not) (do anything|help|apply|work)|do(es)? nothing|\bignored\b|silently|not (enforced|honou?red|respected|implemented|wired|applied)|never (read|used|applied|enforced)",),
        (r"whatever (is|was) (set|configured)|regardless of (the )?(setting|option|value|flag)|as (slow|bad|long) as (without|before)|same (with and|as) without",),
    ),
    "mixed_is_costly": (
        (r"decod\w*( rows?| tokens?| requests?)?|all (tokens|rows)|whole batch", r"prefill (kernel|path|attention|route)|(through|take|use)\w* the prefill"),
        (r"\bmix(ed|es|ing)?\b|chunk (joins|rides along|is added)|prefill[- ](containing|carrying)|contain\w* prefill|carr(y|ies) prefill|prefill kernel", r"eager\w*|cuda ?graphs?|graphs?\b|fixed|overhead|kernel|extra|attention cost|expensive|cost\w*"),
        (r"(small\w*|tiny|lower\w*|shrinking|cap\w*|chunk size|size of the (chunk|prefill))\b[\w ,-]{0,60}(do(es)? not|don.t|did not|didn.t|doesn.t|never|hardly|no longer) (help|bound|matter|reduce|change)",),
        (r"fragment\w*|interrupt\w*", r"prefills?", r"decod\w*|throughput|streams?"),
        (r"(cost|overhead) (for each|per|of each|a) (step|chunk|prefill|interruption|iteration)",),
    ),
    "follows_chunk": (
        (r"(depends? on|proportional to|scales with|follows|grows with|set by|shorter with|reduced by|smaller with|over|divided by)\b[\w' -]{0,24}\b(batch|chunk|n_batch|budget|batched)",),
    ),
    "simultaneous": (
        (r"at the same time|simultaneous\w*|at once|together|concurrently|in parallel", r"two|both|title|second|several|also|background|asks|sends"),
    ),
    "slows_others": (
        (r"slow\w*|freez\w*|froze\w*|stall\w*|block\w*|paus\w*|starv\w*|stop\w*|degrad\w*|hang\w*|drop\w*|stutter\w*|halt\w*|collaps\w*|no progress", r"others?|all|every\w*|stream\w*|generation\w*|decod\w*|users?|slots?|sessions?|answers?|running|lane"),
    ),
    "only_decodes": (
        (
            _NO_PREFILL_MEANT + r"(nothing (is|was) (being )?prefilled|decod\w+ (\w+ ){0,2}(together|concurrently|at once)|(together|concurrently)\b.{0,12}decod\w*"
            r"|(several|two|many|multiple|more|all|both) (\w+ ){0,2}(decod|generat)\w+)",
        ),
        (r"no (prefill|prompt)\w*( is| are| was)?|(both|all)( are| were)? decoding|decod\w* only|only decod\w*|pure decod\w*|decode-only phase|already prefilled|without (any )?prefill",),
    ),
    "small_prefills": ((r"small (backfill )?prefills?|prefill tokens small|prefills? (is|are) small|short prefills",),),
    "right_alone": (
        (r"alone|solo|single|sequential\w*|one (request )?at a time|by itself|without (company|others?|load)", r"right|correct|clean|fine|perfect\w*|good|works?|ok\b|100 ?%"),
    ),
    "dropped_again": (
        (r"dropp?(ed|s)?|thrown (out|away)|discard\w*|kicked out|evict\w*|preempt\w*", r"again|anew|from scratch|over and over|recomput\w*"),
    ),
    "never_scheduled": (
        (r"never (scheduled|admitted|started|runs?|starts?|progress\w*)|hangs?|stuck|no progress|(waits|shut out|held) (until|for)|\b0 tokens|rounds? (down )?to 0",),
    ),
    "decodes_stop": (
        (r"\bdecod\w+|(is|are|already) generating|running (answers?|requests?|streams?|generations?)|(active|live|in-?flight|other|every) (answers?|streams?|generations?|requests?)", r"\bno\b|never|not (run|scheduled|advanced|served)|stop\w*|stall\w*|block\w*|freez\w*|frozen|paus\w*|nothing|without|starv\w*|halt\w*|wait\w*|throws?|thrown|kick\w*|push\w* out", r"prefill\w*|prompts?\b"),
    ),
    "not_together": (
        (r"^(?!.*(prefill|as if|as long as|should|direct|bypass|http)).*\b(requests?|dialogs?|chats?|quer(y|ies)|answers?|calls?|users?|clients?|conversations?|prompts?)\b.*(one after (another|the other)|one by one|one at a time|sequential\w*|serial(ly|ised|ized)|in series|only after the (first|other))",),
        (r"^(?!.*(prefill|prompt)).*\b(second|next|other|later|new)\b.{0,20}(request|chat|dialog|user|client|query|question)\w*\b.{0,40}(when|until|after|once|before) the (first|previous|other|earlier|running)\b.{0,30}(done|finish\w*|end\w*|complet\w*|over|answered)",),
        (r"^(?!.*(prefill|as if)).*\b(each|everyone|every (user|request|client))\b.{0,20}\bwaits?\b.{0,20}\b(one|others?|request|user|person|everyone)s? (before|ahead|in front)\b",),
        (r"^(?!.*(prefill|as if|should)).*\bone (request|answer|user|client|prompt|chat|query|caller)\b[\w ]{0,14}\bat (a|one) time",),
        (r"^(?!.*prefill).*\b(second|third|fourth|next|last|other|later) (one|request|caller|chat|user|client|dialog|query)?\b.{0,30}\b(starts?|begins?|runs?|comes?|answered|served|waits?)\b.{0,24}\b(only|until|for)\b.{0,40}\b(first|other|others|previous|earlier|three|two)\b.{0,24}(end\w*|finish\w*|done|complet\w*|over)",),
        (r"never (ran|run) together|no free slot|did not overlap|no overlap",),
    ),
    "one_after_another": (
        (r"one after (another|the other)|sequential\w*|serial(ly|ised|ized)|waits? (until|for) the (first|other)|queued until|never (ran|run) together|no free slot|one at a time",),
    ),
}  # fmt: skip

_COMPILED = {
    name: tuple(tuple(re.compile(part, re.IGNORECASE) for part in parts) for parts in alternatives)
    for name, alternatives in SIGNALS.items()
}
COMPILED_QUANTITIES = tuple(
    (name, dimension, re.compile(yes), re.compile(no) if no else None) for name, dimension, yes, no in QUANTITIES
)


#: Statements that a report also makes to rule a cause out ("no preemptions", "without CPU load").
_DENIABLE = frozenset({"corrupt", "resend", "preempted", "host", "mixed_is_costly"})
_DENIAL = re.compile(r"(?<!temperature )\b(no|zero|without|not|never|nor|neither|0)\s+([\w/-]+\s+){0,2}$", re.IGNORECASE)


def find_signal(name: str, sentences: list[str]) -> str | None:
    """The words of the first sentence that carries the statement, or None."""
    for sentence in sentences:
        for parts in _COMPILED[name]:
            found = [part.search(sentence) for part in parts]
            if found[0] and name in _DENIABLE and _DENIAL.search(sentence[: found[0].start()]):
                continue
            if all(found):
                return ", ".join(dict.fromkeys(hit.group(0).strip() for hit in found if hit))
    return None
