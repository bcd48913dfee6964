package slock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// seat is what one owner has or asks for at one node. Commands of the owner run one after another there: a
// lock whose answer is late must not pass the release that takes it away.
type seat struct {
	node       node
	turn       chan struct{}
	unanswered *unanswered // of all seats of the owner

	mu        sync.Mutex
	releasing int   // releases that are not done yet: nothing else is sent
	barred    int   // attempts up to this one have been released: nothing more is sent for them
	touched   bool  // whether the node may have been asked
	mayHold   bool  // whether the node may have granted something that was not released
	fence     int64 // what it granted last
}

// seats are those of one owner, in the order of the nodes.
type seats []*seat

func (q *Quorum) newSeats() seats {
	s := make(seats, len(q.nodes))
	all := &unanswered{}
	for i, n := range q.nodes {
		s[i] = &seat{node: n, turn: make(chan struct{}, 1), unanswered: all}
	}
	return s
}

// answer is what one node said to a command.
type answer struct {
	reply int64
	err   error
}

func (a answer) granted() bool { return a.err == nil && a.reply > 0 }

// lock asks the node for the lock, and waits for the answer until the context is over.
func (s *seat) lock(
	ctx context.Context, attempt int, ttl time.Duration, build func(context.Context) command,
) (int64, error) {
	return s.ask(ctx, attempt, build, func(cmd command) {
		reply, err := cmd.Int64()
		s.unanswered.note(ttl, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.touched = s.touched || !isDialError(err)
		switch {
		case err == nil && reply > 0:
			s.mayHold, s.fence = true, reply
		case mayRunLater(err):
			s.mayHold = true
		}
	})
}

// extend sets the ttl at the node, and waits for the answer until the context is over.
func (s *seat) extend(ctx context.Context, attempt int, o owner, ttl time.Duration) (int64, error) {
	build := func(ctx context.Context) command { return o.extend(ctx, ttl) }
	return s.ask(ctx, attempt, build, func(cmd command) { s.unanswered.note(ttl, cmd.Err()) })
}

// ask sends a command, and waits for the answer until the context is over. Noted sees the command when it was
// answered or failed, however late, and before the next one is sent.
func (s *seat) ask(
	ctx context.Context, attempt int, build func(context.Context) command, noted func(command),
) (int64, error) {
	for again := false; ; again = true {
		reply, err := s.askOnce(ctx, attempt, build, noted)
		// The connection may have been lost long before.
		if again || !mayRunLater(err) || ctx.Err() != nil {
			return reply, err
		}
	}
}

func (s *seat) askOnce(
	ctx context.Context, attempt int, build func(context.Context) command, noted func(command),
) (int64, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, errNoAnswer
	}
	s.mu.Lock()
	late := s.releasing > 0 || attempt <= s.barred || ctx.Err() != nil
	s.mu.Unlock()
	if late {
		<-s.turn
		return 0, errNoAnswer
	}
	cmd := build(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		_ = s.node.send(context.WithoutCancel(ctx), cmd)
		noted(cmd)
		close(done)
		<-s.turn
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return 0, errNoAnswer
	}
	reply, err := cmd.Int64()
	return reply, named(err)
}

var errNoAnswer = errors.New("no answer in time")

// release sends a release after all else, until it was answered. It tries for no longer than most, only once
// where the node cannot have anything, and not at all where nothing has reached the node.
func (s *seat) release(attempt int, build func(context.Context) command, most time.Duration) (int64, error) {
	s.mu.Lock()
	s.releasing++
	s.barred = max(s.barred, attempt)
	s.mu.Unlock()
	s.turn <- struct{}{}
	defer func() {
		s.mu.Lock()
		s.releasing--
		s.mu.Unlock()
		<-s.turn
	}()
	s.mu.Lock()
	touched := s.touched
	s.mu.Unlock()
	if !touched {
		return 0, nil
	}
	end := time.Now().Add(most)
	var pauses backoff
	for repeated := false; ; {
		cmd := build(context.Background())
		_ = s.node.send(context.Background(), cmd)
		reply, err := cmd.Int64()
		s.mu.Lock()
		again := s.mayHold && isTemporary(err)
		s.mayHold = again
		s.mu.Unlock()
		if err == nil && reply == 0 && repeated {
			reply = 1 // the attempt before did it
		}
		pause := pauses.next()
		if !again || time.Until(end) < pause {
			return reply, named(err)
		}
		repeated = repeated || isConnectionError(err)
		time.Sleep(pause)
	}
}

func (s *seat) currentFence() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence
}

// each asks all nodes at once, in shuffled order. Enough sees the answers as they arrive, the last one too,
// and may end it before all have answered: the others are still asked.
func (s seats) each(ask func(*seat) (int64, error), enough func([]answer) bool) []answer {
	answers := make([]answer, len(s))
	for i := range answers {
		answers[i] = answer{err: errNoAnswer}
	}
	type arrival struct {
		place int
		answer
	}
	arrivals := make(chan arrival, len(s))
	for _, place := range rand.Perm(len(s)) {
		go func() {
			reply, err := ask(s[place])
			arrivals <- arrival{place, answer{reply: reply, err: err}}
		}()
	}
	var got []answer
	for range s {
		a := <-arrivals
		answers[a.place] = a.answer
		if got = append(got, a.answer); enough(got) {
			break
		}
	}
	return answers
}

// whole waits for all answers.
func whole([]answer) bool { return false }
