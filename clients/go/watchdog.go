package slock

import (
	"container/heap"
	"sync"
	"time"
)

// This file has the one goroutine that looks after all holds of a Locks: it has those renewed that are due, and ends
// those whose time is over. It does not wait for answers: one that stays away must not keep it from the other holds.

// mostSleep is the longest that the watchdog sleeps while it has holds: its timer stops while the machine sleeps, and
// a hold may be over when it goes on.
const mostSleep = time.Second

type watchdog struct {
	renew func([]dueRenewal) // sends renewals, and notes their answers

	mu      sync.Mutex
	running bool
	closed  bool // nothing is renewed any more
	holds   holdHeap
	wake    chan struct{}
}

// dueRenewal is one that is to be sent.
type dueRenewal struct {
	hold *Hold
	renewal
}

func newWatchdog(renew func([]dueRenewal)) *watchdog {
	return &watchdog{renew: renew, wake: make(chan struct{}, 1)}
}

// watch begins to look after a hold.
func (w *watchdog) watch(h *Hold, due instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.due = due; h.place >= 0 {
		return
	}
	heap.Push(&w.holds, h)
	if !w.running {
		w.running = true
		go w.run()
	}
	w.wakeFor(h)
}

// moved is called when the times of a hold have changed.
func (w *watchdog) moved(h *Hold, due instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.place < 0 || h.due == due {
		return
	}
	h.due = due
	heap.Fix(&w.holds, h.place)
	w.wakeFor(h)
}

func (w *watchdog) wakeFor(h *Hold) {
	if h.place == 0 {
		w.alarm()
	}
}

func (w *watchdog) alarm() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watchdog) forget(h *Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.place >= 0 {
		heap.Remove(&w.holds, h.place)
	}
}

func (w *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.wake:
		}
		at := now()
		var renewals []dueRenewal
		for _, h := range w.dueBy(at) {
			if r, ok := h.look(at); ok && !w.isClosed() {
				renewals = append(renewals, dueRenewal{hold: h, renewal: r})
			}
		}
		if len(renewals) > 0 {
			go w.renew(renewals)
		}
		w.mu.Lock()
		if len(w.holds) > 0 {
			timer.Reset(min(w.holds[0].due.sub(at), mostSleep))
		} else if w.closed {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// look is called when the hold is due. It ends a hold whose time is over, and gives the renewal to be sent, if there
// is one.
func (h *Hold) look(at instant) (r renewal, ok bool) {
	_ = h.update(func(l *lease) { r, ok = l.begin(at) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lease.state == live {
		h.watchdog.watch(h, h.lease.due())
	}
	return r, ok
}

// dueBy takes the holds that are due out of the heap. Each goes back when it was looked at.
func (w *watchdog) dueBy(at instant) []*Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []*Hold
	for len(w.holds) > 0 && w.holds[0].due <= at {
		due = append(due, heap.Pop(&w.holds).(*Hold))
	}
	return due
}

func (w *watchdog) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close ends renewals. The goroutine goes on until the last hold is over.
func (w *watchdog) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.alarm()
}

// holdHeap has the hold on top that is due first.
type holdHeap []*Hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is called by container/heap.
func (h *holdHeap) Push(x any) {
	hold := x.(*Hold)
	hold.place = len(*h)
	*h = append(*h, hold)
}

// Pop is called by container/heap.
func (h *holdHeap) Pop() any {
	last := len(*h) - 1
	hold := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	hold.place = -1
	return hold
}
