"""Which blocks a request holds, what of its prompt is cached, and what it leaves behind for others.

Two kinds of groups share one pool. *Full attention* keeps every block of a prompt and matches from the
left, block by block. *Recurrent states* (linear attention, in vLLM's align mode) keep one state where a
chunk ended on a block boundary; a state stands for everything before it, so a match needs just one block. A
hit is what both agree on, and never the whole prompt: its last token is always computed, since its logits
are needed.

Two eras of retention. Dense (before 0.30): every chunk end on a boundary stays. Sparse: only the prompt's
own last boundary, (n - 1) // B * B, and a *junction*, the place up to which full attention had already
matched when the request was admitted; so a prompt is cached for its extensions only after it was seen to be
shared, or if a prompt ended there.

The bookkeeping follows vLLM's KVCacheManager and its managers by kind of group, in their order, so that the
pool's eviction order comes out the same.
"""

from __future__ import annotations

from headway.simulator.blocks import Block, BlockPool
from headway.simulator.holdings import CacheLayout, Held, Hit, States
from headway.simulator.request import Request
from headway.simulator.rules import Rules

FULL = 0


class KVCache:
    def __init__(self, layout: CacheLayout, rules: Rules) -> None:
        self.layout = layout
        self.rules = rules
        self.pool = BlockPool(layout.blocks, layout.caching)
        speculative = layout.draft_tokens > 0
        #: Blocks end keys one token later (0.33) or one matched block is given up (before) under
        #: speculative decoding.
        self.lookahead = 1 if speculative and rules.lookahead_keys else 0
        self.drops_block = speculative and not rules.lookahead_keys
        #: States are cached at boundaries only with prefix caching; without it a request holds one state a
        #: group.
        self.align = layout.state_groups > 0 and layout.caching
        self.sparse = self.align and rules.sparse_retention
        drafts = layout.draft_tokens
        #: `_place` of a decode step in terms of the position at which it begins: +drafts is its last token, and so on.
        self._offsets = sorted({-1, drafts, 1, 2 * drafts, 1 - self.lookahead})
        self._held: dict[str, Held] = {}
        self._asked: tuple[Request, int, int] | None = None
        self._found = Hit()
        self._new_states: set[tuple[int, int]] = set()

    # -- matching ----------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Hit:
        """What of `request` is cached now. Takes nothing."""
        if not self.layout.caching:
            return Hit()
        # The head of the queue is looked up in each step in which it has to wait, and mostly nothing has changed.
        asked = (request, request.num_tokens, self.pool.changes)
        if self._asked != asked:
            self._asked, self._found = asked, self._lookup(request)
        hit = self._found
        return Hit(hit.tokens, hit.longest, list(hit.full), list(hit.states))

    def _lookup(self, request: Request) -> Hit:
        block = self.layout.block_size
        request.grow_keys(block, self.lookahead)
        limit = request.num_tokens - 1
        reach = limit
        if self.drops_block and self.layout.state_groups:
            reach = min(limit + block, len(request.keys) * block)
        full = self.pool.run(FULL, request.keys[: reach // block])
        if self.drops_block and full:
            full.pop()
        longest = len(full) * block
        if not self.align:
            return Hit(longest, longest, full)
        for index in range(len(full) - 1, -1, -1):
            states = self._states_at(request.keys[index])
            if states is not None:
                return Hit((index + 1) * block, longest, full[: index + 1], states)
        return Hit(0, longest)

    def _states_at(self, key: int) -> list[Block] | None:
        states = [self.pool.find(group, key) for group in range(1, self.layout.state_groups + 1)]
        return None if None in states else [s for s in states if s is not None]

    # -- allocation --------------------------------------------------------------------------------

    def step_starts(self) -> None:
        """A state cached in a step can be used by others only from the next step on."""
        self._new_states.clear()

    def allocate(self, request: Request, new: int, hit: Hit | None = None, whole: bool = False) -> bool:
        """Give `request` room for `new` more tokens (behind `hit` at its admission); False, and nothing
        taken, if it lacks.

        With `whole`, the rest of the prompt must fit as well, though only `new` tokens are given room now.
        """
        held = self._held.get(request.id)
        if held is not None and not held.renews and held.place == self._place(request, new):
            return True
        hit = hit or Hit()
        computed = request.computed + hit.tokens
        if whole and self._need(request, request.num_tokens, request.num_tokens, hit) > self.pool.free_count:
            return False
        main = computed + new
        with_drafts = min(main + self.layout.draft_tokens, self.layout.max_model_len)
        self._retire(request.id, computed)
        if self._need(request, with_drafts, main, hit) > self.pool.free_count:
            return False
        if held is None:
            held = self._held[request.id] = self._admit(hit)
        held.full.extend(self.pool.take(max(_ceil(with_drafts, self.layout.block_size) - len(held.full), 0)))
        for states in held.states:
            self._extend_states(states, main)
        renewed = self.layout.caching and self._publish(request, held, min(main, request.num_tokens))
        held.renews = renewed
        held.place = () if hit.tokens else self._place(request, new)
        return True

    def unmoved(self, request: Request, new: int) -> bool:
        """Whether allocating `new` more tokens would leave every block where it is."""
        return self._held[request.id].place == self._place(request, new)

    def next_move(self, computed: int) -> int:
        """The first position above `computed` at which the allocation of a decode step moves a block.

        Between two of these positions `_place` does not change: there, the leap over decode steps allocates nothing.
        """
        block = self.layout.block_size
        return min([((computed + offset) // block + 1) * block - offset for offset in self._offsets])

    @property
    def most_moved(self) -> int:
        """Blocks that one decode step of one request takes at most."""
        drafts, block = self.layout.draft_tokens, self.layout.block_size
        return 2 + 2 * drafts // block + self.layout.state_groups * (1 + drafts)

    def _place(self, request: Request, new: int) -> tuple[int, ...]:
        """All positions on which `allocate` depends, in blocks: the same while a decode stays in a block."""
        block = self.layout.block_size
        computed, known = request.computed, request.num_tokens
        main = computed + new
        drafts = self.layout.draft_tokens
        if drafts == 0:
            return (computed - 1) // block, (main - 1) // block, main // block, known // block
        return (
            (computed - 1) // block,
            (main - 1) // block,
            min(main, known) // block,
            (min(main + drafts, self.layout.max_model_len) - 1) // block,
            (known - self.lookahead) // block,
        )

    def _admit(self, hit: Hit) -> Held:
        self.pool.touch(hit.full)
        held = Held(list(hit.full), len(hit.full), [States() for _ in range(self.layout.state_groups)])
        for states, block in zip(held.states, hit.states, strict=False):
            self.pool.touch([block])
            states.blocks = [None] * (len(hit.full) - 1) + [block]
            states.published = len(states.blocks)
        return held

    def _need(self, request: Request, tokens: int, main: int, hit: Hit) -> int:
        """Blocks that must be free so that `request` can hold `tokens` (`main` without draft tokens)."""
        held = self._held.get(request.id)
        block = self.layout.block_size
        need = max(_ceil(tokens, block) - len(held.full if held else hit.full), 0)
        need += sum(1 for b in hit.full if b.refs == 0)
        drafts = self.layout.draft_tokens
        for group in range(self.layout.state_groups):
            states = held.states[group] if held else None
            have = len(states.blocks) if states else 0
            if not self.align:
                need += max(1 + drafts - have, 0)
                continue
            if hit.states:
                last = hit.states[group]
                if last.key in self._new_states:
                    return self.pool.size + 1
                need += last.refs == 0
            new = _ceil(main, block) + drafts - have - (len(hit.full) if hit.states else 0)
            if new > 0:
                # All but the running state (and those of the drafts) are only places in the list.
                need += min(new, 1 if states and states.allocated else 1 + drafts)
        return need

    def _extend_states(self, states: States, main: int) -> None:
        drafts = self.layout.draft_tokens
        blocks = states.blocks
        if not self.align:
            blocks.extend(self.pool.take(max(1 + drafts - len(blocks), 0)))
            return
        required = _ceil(main, self.layout.block_size) + drafts
        if required <= len(blocks):
            states.allocated = True
            return
        before = len(blocks)
        if states.allocated:
            states.previous = before - 1 - drafts
        elif before:
            states.previous = before - 1
        gap = required - drafts - 1
        blocks.extend([None] * (gap - before))
        if states.allocated:
            for index in range(before - drafts, min(before, gap)):
                blocks.append(blocks[index])
                blocks[index] = None
        blocks.extend(self.pool.take(max(required - len(blocks), 0)))
        states.allocated = True

    def _retire(self, request_id: str, computed: int) -> None:
        """Give back states that lie behind `computed` tokens and are no longer the running one."""
        held = self._held.get(request_id)
        if held is None or not self.align:
            return
        block = self.layout.block_size
        passed = (computed - 1) // block if computed > 1 else 0
        for states in held.states:
            blocks = states.blocks
            end = min(passed, len(blocks))
            if end > states.retired:
                freed = [blocks[i] for i in range(end - 1, states.retired - 1, -1) if blocks[i] is not None]
                blocks[states.retired : end] = [None] * (end - states.retired)
                self.pool.release(freed)
                states.retired = end
            previous = states.previous
            if previous is not None and previous < _ceil(computed, block) - 1 and blocks[previous] is not None:
                self.pool.release([blocks[previous]])
                blocks[previous] = None

    # -- publishing --------------------------------------------------------------------------------

    def _publish(self, request: Request, held: Held, tokens: int) -> bool:
        """Make whole blocks findable. True if a state was registered: such a step is not like the next."""
        block = self.layout.block_size
        request.grow_keys(block, self.lookahead)
        whole = min(tokens // block, len(request.keys))
        for index in range(held.published, whole):
            self.pool.publish(held.full[index], FULL, request.keys[index])
        held.published = max(held.published, whole)
        if not self.align:
            return False
        renewed = False
        kept = self._boundaries(request) if self.sparse else None
        checkpoint = (request.prompt_tokens - (0 if self.drops_block else 1)) // block - self.drops_block
        for group, states in enumerate(held.states, start=1):
            for index in range(states.published, whole):
                state = states.blocks[index]
                if state is None or (kept is not None and index not in kept):
                    continue
                self.pool.publish(state, group, request.keys[index])
                self._new_states.add((group, request.keys[index]))
                renewed = True
            states.published = max(states.published, whole)
            # vLLM 0.32 registers the prompt's last boundary again at each step until the tokens pass the
            # next one, so others that hit that state wait as long as its owner still holds it.
            if 0 < whole <= len(states.blocks) and whole == checkpoint and states.blocks[whole - 1] is not None:
                self._new_states.add((group, request.keys[whole - 1]))
                renewed = True
        return renewed

    def _boundaries(self, request: Request) -> set[int]:
        """Indices of the blocks whose states sparse retention keeps."""
        block = self.layout.block_size
        n = request.prompt_tokens
        ends = {(n - 1) // block - 1, n // block - 1} if self.drops_block else {(n - 1) // block}
        if request.junction:
            ends.add(request.junction // block)
        return {end - 1 for end in ends if end > 0}

    # -- release -----------------------------------------------------------------------------------

    def free(self, request_id: str) -> None:
        """The request is gone (finished, aborted or preempted): its tail blocks become takeable first."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        self.pool.release(held.full[::-1])
        for states in held.states:
            self.pool.release(states.blocks[::-1])

    def holds(self, request_id: str) -> bool:
        return request_id in self._held


def _ceil(tokens: int, block: int) -> int:
    return -(-tokens // block)
