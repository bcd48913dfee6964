package slock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// lease is how long a hold is valid, and what ends with it. Hold and QuorumHold have one.
type lease struct {
	owner    owner
	quorum   *QuorumHold // nil for a Hold
	label    string
	observer Observer
	watchdog *watchdog
	given    bool                                  // whether the caller chose the token
	values   context.Context                       // of the caller of Lock
	counts   func(ttl time.Duration) time.Duration // how much of a ttl counts for the validity
	began    time.Time
	leaseEnd time.Time // zero: none
	renews   bool

	unanswered *unanswered // commands that may still set another deadline

	// operation is held by Extend, Upgrade, Downgrade and Release: they run one after another.
	operation chan struct{}

	mu       sync.Mutex
	state    leaseState
	reason   Reason
	cause    error // of a loss
	ttl      time.Duration
	until    time.Time     // valid until then
	renewAt  time.Time     // when the next renewal is due
	renewals int           // that are on their way
	failed   error         // what the last renewal said, unless one has succeeded since
	extends  bool          // an Extend is on its way: its ttl may be another, so no renewal may pass it
	quiet    chan struct{} // closed when no renewal is on its way any more; nil while nobody waits for that
	notices  []func()      // to be called when the lock is free again

	ctx    context.Context // made when somebody asks for it
	cancel context.CancelCauseFunc

	place int       // in the watchdog's heap; -1: not there
	due   time.Time // when the watchdog looks at it; guarded by the watchdog
}

type leaseState int

const (
	live leaseState = iota
	releasing
	released
	lost
)

// counted is how much of a ttl counts for the validity of a hold: the server counts whole milliseconds, so
// the first of them may be nearly over.
func counted(ttl time.Duration) time.Duration { return ttl - time.Millisecond }

func newLease(
	ctx context.Context, o owner, quorum *QuorumHold, s requestSettings, observer Observer, w *watchdog,
	counts func(time.Duration) time.Duration, u *unanswered, until time.Time,
) *lease {
	now := time.Now()
	l := &lease{
		counts:     counts,
		unanswered: u,
		owner:      o,
		quorum:     quorum,
		label:      s.labelOr(o.keys[0]),
		observer:   observer,
		watchdog:   w,
		given:      s.token != "",
		values:     context.WithoutCancel(ctx),
		began:      now,
		renews:     !s.noRenewal,
		operation:  make(chan struct{}, 1),
		ttl:        s.ttl,
		until:      until,
		renewAt:    until.Add(s.ttl/3 - counts(s.ttl)),
		place:      -1,
	}
	if s.longestLease > 0 && l.renews {
		l.leaseEnd = now.Add(s.longestLease)
	}
	return l
}

// start begins to look after a hold that is renewed, when all else of it is in place.
func (l *lease) start() {
	l.mu.Lock()
	defer l.unlock()
	if l.renews {
		l.watchdog.watch(l)
	}
}

// unlock calls what is to be told, without the lock.
func (l *lease) unlock() {
	notices := l.notices
	l.notices = nil
	l.mu.Unlock()
	for _, notice := range notices {
		notice()
	}
}

// begin waits until no other operation goes on.
func (l *lease) begin(ctx context.Context) error {
	select {
	case l.operation <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lease) end() { <-l.operation }

// check is nil while the hold is valid. A hold whose time is over is lost from then on, whatever an answer
// says later.
func (l *lease) check() error {
	now := time.Now()
	l.mu.Lock()
	defer l.unlock()
	if l.state == live {
		l.loseIfOver(now)
	}
	if l.state == live {
		return nil
	}
	return l.endedErrorLocked()
}

// loseIfOver ends a live hold whose time is over. The caller has locked it.
func (l *lease) loseIfOver(now time.Time) {
	switch {
	case !l.leaseEnd.IsZero() && !now.Before(l.leaseEnd):
		l.loseLocked(LeaseEnded)
	case !now.Before(l.until):
		l.loseLocked(Expired)
	}
}

func (l *lease) lose(reason Reason) {
	l.mu.Lock()
	defer l.unlock()
	if l.state == live {
		l.loseLocked(reason)
	}
}

// loseLocked ends the hold for good. The caller has locked it.
func (l *lease) loseLocked(reason Reason) {
	l.state, l.reason = lost, reason
	if reason == Expired {
		l.cause = l.renewalErrorLocked()
	}
	l.watchdog.forget(l)
	l.awakenLocked()
	if l.cancel != nil {
		l.cancel(l.lostErrorLocked())
	}
	held := time.Since(l.began)
	l.notices = append(l.notices, func() {
		l.observer.Lost(l.label, reason)
		l.observer.Held(l.label, held)
	})
}

// renewalErrorLocked is what the last renewal said, if it was no success.
func (l *lease) renewalErrorLocked() error {
	if l.failed == nil && l.renewals > 0 {
		return errNoAnswer
	}
	return l.failed
}

// awakenLocked lets an Extend go on that waits for renewals.
func (l *lease) awakenLocked() {
	if l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
}

func (l *lease) lostErrorLocked() *LostError {
	return &LostError{Keys: slices.Clone(l.owner.keys), Reason: l.reason, Cause: l.cause}
}

// lostError is nil unless the hold is lost.
func (l *lease) lostError() *LostError {
	l.mu.Lock()
	defer l.unlock()
	if l.state != lost {
		return nil
	}
	return l.lostErrorLocked()
}

// leavesRest tells whether a lost hold may have left something on the server that is certainly its own. What
// a token that the caller chose holds by now may be a later hold.
func (l *lease) leavesRest() bool {
	l.mu.Lock()
	defer l.unlock()
	return l.state == lost && !l.given && (l.reason != Gone || l.quorum != nil || len(l.owner.keys) > 1)
}

// context is made when it is first asked for. From then on the watchdog looks after its end.
func (l *lease) context() context.Context {
	l.mu.Lock()
	defer l.unlock()
	if l.ctx != nil {
		return l.ctx
	}
	l.ctx, l.cancel = context.WithCancelCause(l.values)
	switch l.state {
	case live:
		l.watchdog.watch(l)
	case lost:
		l.cancel(l.lostErrorLocked())
	default:
		l.cancel(nil)
	}
	return l.ctx
}

// startRelease ends renewals, and gives the time until which the hold was valid. It is false for a hold that
// is not live any more.
func (l *lease) startRelease() (time.Time, bool) {
	l.mu.Lock()
	defer l.unlock()
	if l.state == live {
		l.loseIfOver(time.Now())
	}
	if l.state != live {
		return time.Time{}, false
	}
	l.state = releasing
	l.watchdog.forget(l)
	l.awakenLocked()
	if l.cancel != nil {
		l.cancel(nil)
	}
	return l.until, true
}

// expireRelease ends a hold with a token that the caller chose, if its time is over before its release could be
// sent: the token may have a later hold by now.
func (l *lease) expireRelease(until time.Time) bool {
	l.mu.Lock()
	defer l.unlock()
	if !l.given || time.Now().Before(until) {
		return false
	}
	l.loseLocked(Expired)
	return true
}

// finishRelease ends a hold whose release was answered, or will not be.
func (l *lease) finishRelease(wasThere bool) {
	l.mu.Lock()
	defer l.unlock()
	if !wasThere {
		l.loseLocked(Gone)
		return
	}
	l.state = released
	held := time.Since(l.began)
	l.notices = append(l.notices, func() { l.observer.Held(l.label, held) })
}

// startExtend waits until no renewal is on its way, and lets none begin: they set another ttl, and nobody
// knows in which order the server would see them. From here on the hold counts as valid no longer than the
// new ttl, in case that the server does what is sent and the answer is lost.
func (l *lease) startExtend(ctx context.Context, ttl time.Duration) error {
	l.mu.Lock()
	defer l.unlock()
	l.extends = true
	for l.renewals > 0 && l.state == live {
		if l.quiet == nil {
			l.quiet = make(chan struct{})
		}
		quiet := l.quiet
		l.mu.Unlock()
		select {
		case <-quiet:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if l.state == live {
		l.loseIfOver(time.Now())
	}
	if l.state != live {
		return l.endedErrorLocked()
	}
	if until := time.Now().Add(l.counts(ttl)); until.Before(l.until) {
		l.setUntil(until)
	}
	return nil
}

// finishExtend lets renewals begin again. After an error the hold may be valid for less long than before, so
// it is renewed at once.
func (l *lease) finishExtend(err error) {
	l.mu.Lock()
	defer l.unlock()
	l.extends = false
	if err != nil && l.state == live {
		l.renewAt = time.Now()
		l.watchdog.moved(l)
	}
}

// extended notes an answer: the hold is valid for what is certain of the ttl, counted from before the command
// was sent.
func (l *lease) extended(sent time.Time, ttl time.Duration) error {
	l.mu.Lock()
	defer l.unlock()
	if l.state == live {
		l.loseIfOver(time.Now())
	}
	if l.state != live {
		return l.endedErrorLocked()
	}
	certain := l.unanswered.certain(ttl)
	l.ttl, l.failed = ttl, nil
	l.renewAt = sent.Add(certain / 3)
	l.setUntil(sent.Add(l.counts(certain)))
	return nil
}

// refreshed notes an answer that set the ttl that the hold has: it is valid until then at least.
func (l *lease) refreshed(sent time.Time, ttl time.Duration) error {
	l.mu.Lock()
	defer l.unlock()
	if l.state == live {
		l.loseIfOver(time.Now())
	}
	if l.state != live {
		return l.endedErrorLocked()
	}
	l.refreshLocked(sent, ttl)
	return nil
}

func (l *lease) refreshLocked(sent time.Time, ttl time.Duration) {
	l.failed = nil
	certain := l.unanswered.certain(ttl)
	if until := sent.Add(l.counts(certain)); until.After(l.until) {
		l.renewAt = sent.Add(certain / 3)
		l.setUntil(until)
	}
}

func (l *lease) endedErrorLocked() error {
	if l.state == lost {
		return l.lostErrorLocked()
	}
	return &failure{kind: ErrNotHeld, text: "the hold has been released"}
}

func (l *lease) validUntil() time.Time {
	l.mu.Lock()
	defer l.unlock()
	return l.until
}

func (l *lease) endsAt() time.Time {
	l.mu.Lock()
	defer l.unlock()
	return l.endLocked()
}

func (l *lease) currentTTL() time.Duration {
	l.mu.Lock()
	defer l.unlock()
	return l.ttl
}

// setUntil sets the validity, and tells the watchdog. The caller has locked the lease.
func (l *lease) setUntil(until time.Time) {
	l.until = until
	l.watchdog.moved(l)
}

// endLocked is when the hold is over unless it is renewed.
func (l *lease) endLocked() time.Time {
	if !l.leaseEnd.IsZero() && l.leaseEnd.Before(l.until) {
		return l.leaseEnd
	}
	return l.until
}

// dueLocked is when the watchdog has to look at the hold.
func (l *lease) dueLocked() time.Time {
	due := l.endLocked()
	if l.renews && l.renewAt.Before(due) {
		due = l.renewAt
	}
	return due
}

// look is called by the watchdog when the hold is due. It ends a hold whose time is over, and tells whether a
// renewal is to be sent, and with which ttl.
func (l *lease) look(now time.Time) (ttl time.Duration, renewal bool) {
	l.mu.Lock()
	defer l.unlock()
	if l.state != live {
		return 0, false
	}
	if l.loseIfOver(now); l.state != live {
		return 0, false
	}
	if l.renews && !now.Before(l.renewAt) {
		if renewal = !l.extends; renewal {
			// If no answer comes for a third of the ttl, another renewal is sent, over another connection.
			l.renewAt = now.Add(l.unanswered.certain(l.ttl) / 3)
			l.renewals++
		} else {
			l.renewAt = l.until // the end of the Extend moves it
		}
	}
	l.watchdog.watch(l)
	return l.ttl, renewal
}

// finishRenewal notes the end of a renewal. What it says about a hold that is not live any more does not
// count.
func (l *lease) finishRenewal(sent time.Time, ttl time.Duration, held bool, err error) {
	l.mu.Lock()
	defer l.unlock()
	if l.renewals--; l.renewals == 0 {
		l.awakenLocked()
	}
	if err != nil {
		l.failed = named(err)
	}
	l.unanswered.note(ttl, err)
	if l.state == live {
		l.loseIfOver(time.Now())
	}
	switch {
	case l.state != live:
	case err == nil && held:
		l.refreshLocked(sent, ttl)
	case err == nil || hasCode(err, "WRONGTYPE"):
		l.loseLocked(Gone)
	default:
		l.renewAt = time.Now().Add(l.unanswered.certain(ttl) / 10)
		l.watchdog.moved(l)
	}
}

// run runs work under the hold, for Do.
func (l *lease) run(
	ctx context.Context, release func(context.Context) error, work func(context.Context) error,
) (err error) {
	holdCtx := l.context()
	workCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(holdCtx, func() { cancel(context.Cause(holdCtx)) })
	defer func() {
		stop()
		releaseErr := release(ctx)
		cancel(nil)
		if lost := l.lostError(); lost != nil {
			err = joinLost(lost, err)
		} else {
			err = errors.Join(err, releaseErr)
		}
	}()
	return work(workCtx)
}

// joinLost adds what the work said, unless that is only that its context ended.
func joinLost(lost *LostError, err error) error {
	if err == nil || errors.Is(err, ErrLost) || errors.Is(err, context.Canceled) {
		return lost
	}
	return errors.Join(lost, err)
}
