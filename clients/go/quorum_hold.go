package slock

import (
	"context"
	"slices"
	"time"
)

// QuorumHold is a lock that a majority of the nodes granted. All methods may be called by several goroutines
// at once; Extend and Release run one after another.
type QuorumHold struct {
	quorum   *Quorum
	lease    *lease
	seats    seats
	attempt  int // the one that succeeded
	mode     Mode
	adopted  bool // the nodes were not asked for the mode
	settings requestSettings
}

func (q *Quorum) newHold(ctx context.Context, p *poll, sent time.Time) *QuorumHold {
	h := &QuorumHold{quorum: q, seats: p.seats, attempt: p.attempts}
	h.mode, h.settings, h.adopted = p.request.mode, p.request.settings, p.adopts
	until := sent.Add(q.counts(h.settings.ttl))
	h.lease = newLease(
		ctx, p.owner, h, h.settings, q.settings.observer, q.watchdog, q.counts, h.seats[0].unanswered, until,
	)
	h.lease.start()
	return h
}

// Token is the owner's identity.
func (h *QuorumHold) Token() string { return h.lease.owner.token }

// Keys are the keys of the hold.
func (h *QuorumHold) Keys() []string { return slices.Clone(h.lease.owner.keys) }

// Metadata is the text that the request gave.
func (h *QuorumHold) Metadata() string { return h.settings.metadata }

// Mode is the mode of the hold.
func (h *QuorumHold) Mode() Mode { return h.mode }

// Fences are the fences that the nodes gave, in the order of the clients, and 0 for a node that gave none.
// Fences of different servers cannot be compared.
func (h *QuorumHold) Fences() []int64 {
	fences := make([]int64, len(h.seats))
	for i, s := range h.seats {
		fences[i] = s.currentFence()
	}
	return fences
}

// ValidUntil is until when a majority certainly has the hold, on the monotonic clock, if nobody deletes its
// keys.
func (h *QuorumHold) ValidUntil() time.Time { return h.lease.validUntil() }

// Context ends when the hold is lost, with a *LostError as its cause, or released. It has the values of the
// context that was given to Lock, but does not end with it.
func (h *QuorumHold) Context() context.Context { return h.lease.context() }

// Check is nil while the hold is valid, a *LostError when it is lost, and ErrNotHeld when it has been
// released. It sends nothing.
func (h *QuorumHold) Check() error { return h.lease.check() }

// Extend sets a new ttl on all nodes, counted from now on. Nodes that have lost the hold are asked to grant
// it anew, as long as a majority still has it. It fails with a *LostError when the majority says that it is
// gone, and with a *QuorumError when too few nodes answered: then each renewal counts for the lesser of the two
// ttls. What is said of Hold.Extend about commands without an answer holds for those to any node.
func (h *QuorumHold) Extend(ctx context.Context, ttl time.Duration) error {
	if err := h.quorum.checkTTL(ttl); err != nil {
		return err
	}
	if err := h.lease.begin(ctx); err != nil {
		return err
	}
	defer h.lease.end()
	err := h.lease.startExtend(ctx, ttl)
	if err == nil {
		if err = h.extend(ctx, ttl); err != nil {
			h.lease.unanswered.remember(ttl)
		}
	}
	h.lease.finishExtend(err)
	return err
}

func (h *QuorumHold) extend(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	var err error
	answers := h.extendAll(ctx, ttl, func() { err = h.lease.extended(sent, ttl) })
	switch {
	case err != nil:
		return err
	case count(answers) >= h.quorum.majority():
		h.regain(ctx, answers, ttl)
		return nil
	case h.quorum.isGone(answers):
		h.lease.lose(Gone)
	}
	if err := h.lease.check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return h.quorum.missed(answers)
}

// extendAll gives the answers of all nodes. It calls extended as soon as a majority has said yes.
func (h *QuorumHold) extendAll(ctx context.Context, ttl time.Duration, extended func()) []answer {
	return h.quorum.extendAll(ctx, h.seats, h.attempt, h.lease.owner, ttl, func(got []answer) bool {
		if extended != nil && count(got) >= h.quorum.majority() {
			extended()
			extended = nil
		}
		return false
	})
}

func (q *Quorum) extendAll(
	ctx context.Context, s seats, attempt int, o owner, ttl time.Duration, enough func([]answer) bool,
) []answer {
	nodeCtx, cancel := context.WithTimeout(ctx, q.nodeTimeout(ttl))
	defer cancel()
	return s.each(func(seat *seat) (int64, error) {
		return seat.extend(nodeCtx, attempt, o, ttl)
	}, enough)
}

// lostThere tells that the node says that it does not have the hold.
func lostThere(a answer) bool { return a.err == nil && a.reply == 0 || hasCode(a.err, "WRONGTYPE") }

// isGone tells that so many nodes do not have the hold that there is no majority that has it.
func (q *Quorum) isGone(answers []answer) bool {
	gone := 0
	for _, a := range answers {
		if lostThere(a) {
			gone++
		}
	}
	return gone > len(q.nodes)-q.majority()
}

// regain asks the nodes that have lost the hold to grant it anew, with the same token.
func (h *QuorumHold) regain(ctx context.Context, answers []answer, ttl time.Duration) {
	var missing seats
	for i, a := range answers {
		if lostThere(a) {
			missing = append(missing, h.seats[i])
		}
	}
	if len(missing) == 0 {
		return
	}
	nodeCtx, cancel := context.WithTimeout(ctx, h.quorum.nodeTimeout(ttl))
	defer cancel()
	settings := h.settings
	settings.ttl = ttl
	missing.each(func(s *seat) (int64, error) {
		return s.lock(nodeCtx, h.attempt, ttl, func(ctx context.Context) command {
			return h.lease.owner.lock(ctx, h.mode, &settings)
		})
	}, whole)
}

// renew sends renewals, and notes their answers.
func (q *Quorum) renew(renewals []renewal) {
	for _, r := range renewals {
		go r.lease.quorum.renew(r.ttl)
	}
}

func (h *QuorumHold) renew(ttl time.Duration) {
	ctx := context.Background()
	sent := time.Now()
	answers := h.extendAll(ctx, ttl, func() { h.lease.finishRenewal(sent, ttl, true, nil) })
	switch {
	case count(answers) >= h.quorum.majority():
		if h.lease.check() == nil {
			h.regain(ctx, answers, ttl)
		}
	case h.quorum.isGone(answers):
		h.lease.finishRenewal(sent, ttl, false, nil)
	default:
		h.lease.finishRenewal(sent, ttl, false, h.quorum.missed(answers))
	}
}

// Release ends the hold on all nodes, and tells whether a majority still had it. It is sent even if ctx is
// over; ctx only ends the wait for the answers, which is no longer than that for a node. Nodes that do not
// answer in time are asked again in the background, until the hold is over there. Of a lost hold with a token
// of the caller's nothing is released, because the token may have a later hold by now.
func (h *QuorumHold) Release(ctx context.Context) (bool, error) {
	_, wasLive := h.lease.startRelease()
	if !wasLive && !h.lease.leavesRest() {
		return false, nil
	}
	q := h.quorum
	mode := h.mode
	if h.adopted {
		mode = ""
	}
	build := func(ctx context.Context) command { return h.lease.owner.release(ctx, mode) }
	token, ttl := h.lease.owner.token, h.lease.currentTTL()
	answers := q.releaseAll(ctx, h.seats, h.attempt, token, build, ttl, func(got []answer) bool {
		return count(got) >= q.majority() || q.isGone(got)
	})
	return h.judgeRelease(wasLive, answers)
}

// releaseAll releases on all nodes. It gives the answers that came until they were enough, the context was
// over, or the timeout for nodes. What has no answer by then is sent on in the background.
func (q *Quorum) releaseAll(
	ctx context.Context, s seats, attempt int, token string, build func(context.Context) command,
	ttl time.Duration, enough func([]answer) bool,
) []answer {
	waitCtx, cancel := context.WithTimeout(ctx, q.nodeTimeout(ttl))
	defer cancel()
	return s.each(func(seat *seat) (int64, error) {
		done := make(chan answer, 1)
		q.tokenTasks.run(&q.background, token, func() {
			reply, err := seat.release(attempt, build, ttl)
			done <- answer{reply: reply, err: err}
		})
		select {
		case a := <-done:
			return a.reply, a.err
		case <-waitCtx.Done():
			return 0, errNoAnswer
		}
	}, enough)
}

func (h *QuorumHold) judgeRelease(wasLive bool, answers []answer) (bool, error) {
	if !wasLive {
		return false, nil
	}
	if h.quorum.isGone(answers) {
		h.lease.finishRelease(false)
		return false, nil
	}
	h.lease.finishRelease(true)
	if count(answers) >= h.quorum.majority() {
		return true, nil
	}
	return false, h.quorum.missed(answers)
}

// Unlock is Release with an error if a majority did not have the hold any more: a *LostError if it is lost,
// or ErrNotHeld if it had been released.
func (h *QuorumHold) Unlock(ctx context.Context) error {
	released, err := h.Release(ctx)
	if err != nil || released {
		return err
	}
	return h.lease.check()
}
