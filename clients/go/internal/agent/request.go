package agent

import (
	"context"
	"errors"
	"time"

	"slock.example/go"
)

// Request is one line of input. Its fields are those of all operations.
type Request struct {
	ID     int64  `json:"id"`
	Op     string `json:"op"`
	Locks  string `json:"locks"`
	Hold   string `json:"hold"`
	Target int64  `json:"target"`

	Kind           string   `json:"kind"`
	Nodes          []string `json:"nodes"`
	Service        string   `json:"service"`
	User           string   `json:"user"`
	Password       string   `json:"password"`
	PasswordFile   string   `json:"password_file"`
	PoolSize       int      `json:"pool_size"`
	ReadTimeoutMS  *int64   `json:"read_timeout_ms"`
	Prefix         string   `json:"prefix"`
	RetryForMS     *int64   `json:"retry_for_ms"`
	RetryWaitForMS *int64   `json:"retry_wait_for_ms"`
	Poll           *poll    `json:"poll"`

	NodeTimeoutMS *int64   `json:"node_timeout_ms"`
	DriftFactor   *float64 `json:"drift_factor"`
	FailFast      bool     `json:"fail_fast"`

	Key              string   `json:"key"`
	Keys             []string `json:"keys"`
	Mode             string   `json:"mode"`
	Limit            *int     `json:"limit"`
	TTLMS            *int64   `json:"ttl_ms"`
	WaitMS           *int64   `json:"wait_ms"`
	Metadata         string   `json:"metadata"`
	Renew            *bool    `json:"renew"`
	MaxHoldMS        *int64   `json:"max_hold_ms"`
	AtLeastMS        *int64   `json:"at_least_ms"`
	Token            *string  `json:"token"`
	MinReplicas      int      `json:"min_replicas"`
	ReplicaTimeoutMS *int64   `json:"replica_timeout_ms"`
	Label            string   `json:"label"`

	WorkMS    int64  `json:"work_ms"`
	Tasks     int    `json:"tasks"`
	Additions int    `json:"additions"`
	Counter   string `json:"counter"`
	Rounds    int    `json:"rounds"`

	MS      int64    `json:"ms"`
	Command []string `json:"command"`
	Release bool     `json:"release"`
}

type poll struct {
	Kind    string `json:"kind"`
	PauseMS int64  `json:"pause_ms"`
	MostMS  int64  `json:"most_ms"`
	Limit   *int   `json:"limit"`
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (p *poll) strategy() slock.Strategy {
	attempts := -1
	if p.Limit != nil {
		attempts = *p.Limit
	}
	switch p.Kind {
	case "none":
		return slock.ConstantPause(0, 0)
	case "constant":
		return slock.ConstantPause(ms(p.PauseMS), attempts)
	case "exponential":
		return slock.ExponentialPause(ms(p.PauseMS), ms(p.MostMS), attempts)
	}
	return slock.ExponentialPause(10*time.Millisecond, 100*time.Millisecond, attempts)
}

func (r Request) keys() []string {
	if r.Key != "" {
		return []string{r.Key}
	}
	return r.Keys
}

// options are those that the request names.
func (r Request) options() []slock.RequestOption {
	var options []slock.RequestOption
	if r.TTLMS != nil {
		options = append(options, slock.TTL(ms(*r.TTLMS)))
	}
	if r.WaitMS != nil {
		options = append(options, slock.Wait(ms(*r.WaitMS)))
	}
	if r.Limit != nil {
		options = append(options, slock.Limit(*r.Limit))
	}
	if r.Metadata != "" {
		options = append(options, slock.Metadata(r.Metadata))
	}
	if r.Renew != nil && !*r.Renew {
		options = append(options, slock.NoRenewal())
	}
	if r.MaxHoldMS != nil {
		options = append(options, slock.MaxHold(ms(*r.MaxHoldMS)))
	}
	if r.AtLeastMS != nil {
		options = append(options, slock.AtLeast(ms(*r.AtLeastMS)))
	}
	if r.Token != nil {
		options = append(options, slock.Token(*r.Token))
	}
	if r.MinReplicas > 0 {
		timeout := time.Second
		if r.ReplicaTimeoutMS != nil {
			timeout = ms(*r.ReplicaTimeoutMS)
		}
		options = append(options, slock.MinReplicas(r.MinReplicas, timeout))
	}
	if r.Label != "" {
		options = append(options, slock.Label(r.Label))
	}
	return options
}

// name is the name of an error in the protocol.
func name(err error) string {
	names := []struct {
		err  error
		name string
	}{
		{slock.ErrLost, "Lost"},
		{slock.ErrNoAnswer, "NoAnswer"},
		{slock.ErrTimedOut, "TimedOut"},
		{slock.ErrNotHeld, "NotHeld"},
		{slock.ErrWrongMode, "WrongMode"},
		{slock.ErrDeadlock, "Deadlock"},
		{slock.ErrQueueFull, "QueueFull"},
		{slock.ErrQuorumMissed, "QuorumMissed"},
		{slock.ErrTooFewReplicas, "TooFewReplicas"},
		{slock.ErrModuleNotLoaded, "ModuleNotLoaded"},
		{slock.ErrClosed, "Closed"},
		{slock.ErrRefused, "Refused"},
		{context.Canceled, "Cancelled"},
	}
	for _, n := range names {
		if errors.Is(err, n.err) {
			return n.name
		}
	}
	return "Other"
}
