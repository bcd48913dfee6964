package slock

import (
	"container/heap"
	"sync"
	"time"
)

// watchdog is one goroutine that looks after all holds of a Locks: it has those renewed that are due, and
// ends those whose time is over. It does not wait for answers itself: one that stays away must not keep it
// from the other holds.
type watchdog struct {
	renew func([]renewal) // sends renewals, and notes their answers

	mu      sync.Mutex
	running bool
	closed  bool
	leases  leaseHeap
	wake    chan struct{}
	stop    chan struct{}
}

// renewal is one that is to be sent.
type renewal struct {
	lease *lease
	ttl   time.Duration
}

func newWatchdog(renew func([]renewal)) *watchdog {
	return &watchdog{renew: renew, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// watch begins to look after a hold. The caller has locked it, or nobody else knows it.
func (w *watchdog) watch(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.place >= 0 {
		return
	}
	l.due = l.dueLocked()
	heap.Push(&w.leases, l)
	if w.closed {
		w.expire(l, l.due)
		return
	}
	if !w.running {
		w.running = true
		go w.run()
	}
	w.wakeFor(l)
}

// moved is called when the times of a hold have changed. The caller has locked the hold.
func (w *watchdog) moved(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.place < 0 {
		return
	}
	l.due = l.dueLocked()
	heap.Fix(&w.leases, l.place)
	w.wakeFor(l)
}

func (w *watchdog) wakeFor(l *lease) {
	if l.place != 0 {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watchdog) forget(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.place >= 0 {
		heap.Remove(&w.leases, l.place)
	}
}

func (w *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.wake:
		case <-w.stop:
			return
		}
		now := time.Now()
		var renewals []renewal
		for _, l := range w.dueBy(now) {
			if ttl, ok := l.look(now); ok {
				renewals = append(renewals, renewal{lease: l, ttl: ttl})
			}
		}
		if len(renewals) > 0 {
			go w.renew(renewals)
		}
		w.mu.Lock()
		if len(w.leases) > 0 {
			timer.Reset(time.Until(w.leases[0].due))
		}
		w.mu.Unlock()
	}
}

// dueBy takes the holds that are due out of the heap. Each goes back when it was looked at.
func (w *watchdog) dueBy(now time.Time) []*lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []*lease
	for len(w.leases) > 0 && !w.leases[0].due.After(now) {
		due = append(due, heap.Pop(&w.leases).(*lease))
	}
	return due
}

// close ends the goroutine. Holds end when their time is over, as timers see.
func (w *watchdog) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	close(w.stop)
	for _, l := range w.leases {
		w.expire(l, l.due)
	}
}

// expire looks at a hold when the watchdog no longer does.
func (w *watchdog) expire(l *lease, due time.Time) {
	time.AfterFunc(time.Until(due), func() {
		if l.check() == nil {
			w.expire(l, l.endsAt())
		}
	})
}

// leaseHeap has the hold on top that is due first.
type leaseHeap []*lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is called by container/heap.
func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.place = len(*h)
	*h = append(*h, l)
}

// Pop is called by container/heap.
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.place = -1
	return l
}
