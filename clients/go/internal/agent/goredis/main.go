// Command goredis plays the conformance scenarios over go-redis.
package main

import "slock.example/go/internal/agent"

func main() { agent.Main(nil) }
