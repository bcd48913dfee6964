// Command agent plays the conformance scenarios over rueidis or over valkey-go.
package main

import (
	"fmt"
	"os"

	"slock.example/go/internal/agent"
)

func main() {
	libraries := map[string]func(agent.Request) (agent.Client, error){"rueidis": openRueidis, "valkey-go": openValkey}
	if len(os.Args) != 2 || libraries[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: agent rueidis|valkey-go")
		os.Exit(2)
	}
	agent.Main(libraries[os.Args[1]])
}
