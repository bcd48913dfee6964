package agent

import (
	"context"
	"errors"
	"fmt"

	"slock.example/go"
)

func (a *agent) keep(r Request, h *slock.Hold, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.holds[r.Hold] = h
	a.mu.Unlock()
	return describe(h), nil
}

func describe(h *slock.Hold) map[string]any {
	d := map[string]any{"token": h.Token(), "remaining_ms": h.Remaining().Milliseconds(), "fence": h.Fence()}
	if h.Fence() == 0 {
		d["fences"] = h.Fences()
	}
	return d
}

func (a *agent) withHold(ctx context.Context, r Request) (any, error) {
	a.mu.Lock()
	h := a.holds[r.Hold]
	a.mu.Unlock()
	if h == nil {
		return nil, fmt.Errorf("no hold %q", r.Hold)
	}
	switch r.Op {
	case "release":
		return none{}, h.Unlock(ctx)
	case "extend":
		if err := h.Extend(ctx, ms(*r.TTLMS)); err != nil {
			return nil, err
		}
		return map[string]any{"remaining_ms": h.Remaining().Milliseconds()}, nil
	case "upgrade", "downgrade":
		return changeMode(ctx, r, h)
	case "detach":
		return none{}, h.Detach()
	case "check":
		return none{}, h.Check()
	case "state":
		return state(h), nil
	}
	select {
	case <-h.Context().Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return map[string]any{"reason": reason(h.Context())}, nil
}

func changeMode(ctx context.Context, r Request, h *slock.Hold) (any, error) {
	var err error
	switch {
	case r.Op == "downgrade":
		err = h.Downgrade(ctx)
	case r.WaitMS != nil:
		err = h.Upgrade(ctx, slock.Wait(ms(*r.WaitMS)))
	default:
		err = h.Upgrade(ctx)
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"fence": h.Fence(), "mode": h.Mode()}, nil
}

func state(h *slock.Hold) map[string]any {
	d := describe(h)
	d["mode"], d["keys"], d["metadata"] = h.Mode(), h.Keys(), h.Metadata()
	d["lost"], d["reason"] = h.Lost(), nil
	var loss *slock.Error
	if errors.As(h.Check(), &loss) {
		d["reason"] = loss.Reason
	}
	return d
}

// reason is why the hold was lost; nil if it was released.
func reason(ctx context.Context) any {
	var lost *slock.Error
	if errors.As(context.Cause(ctx), &lost) {
		return lost.Reason
	}
	return nil
}
