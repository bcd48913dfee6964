package redislock

// Options are the options of [Client.Obtain], [Client.ObtainMulti] and [Lock.Refresh]. Nil stands for the
// defaults.
type Options struct {
	// RetryStrategy says when to try again. The default is [NoRetry].
	RetryStrategy RetryStrategy

	// Metadata is a note that is kept with the lock: at most 1024 bytes. SLOCK.INFO key FULL shows it.
	// Refresh does not use it.
	Metadata string

	// Token is the owner's identity: 1 to 255 bytes. The default is a random one for each lock. Whoever asks
	// with the token of a lock that is held obtains it too. Refresh does not use it.
	Token string
}

func (o *Options) retryStrategy() RetryStrategy {
	if o == nil || o.RetryStrategy == nil {
		return NoRetry()
	}
	return o.RetryStrategy
}
