package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"slock.example/go/internal/agent"
	"slock.example/go/rueidis/slockrueidis"
)

// openRueidis makes the program's client.
func openRueidis(r agent.Request) (agent.Client, error) {
	size := cmp.Or(r.PoolSize, 2)
	options := rueidis.ClientOption{
		InitAddress: r.Nodes, Username: r.User, Password: r.Password, DisableCache: true,
		BlockingPoolSize: size, PipelineMultiplex: -1, ForceSingleClient: cmp.Or(r.Kind, "single") == "single",
	}
	options.Sentinel.MasterSet = r.Service
	if r.ReadTimeoutMS != nil {
		options.ConnWriteTimeout = cmp.Or(time.Duration(*r.ReadTimeoutMS)*time.Millisecond, time.Hour)
	}
	if r.PasswordFile != "" {
		options.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			password, err := os.ReadFile(r.PasswordFile)
			return rueidis.AuthCredentials{Username: r.User, Password: strings.TrimSpace(string(password))}, err
		}
	}
	options.ClientName = rand.Text()
	client, err := rueidis.NewClient(options)
	if client == nil || err != nil && !options.ForceSingleClient { // a single client connects later
		return agent.Client{}, err
	}
	return agent.Client{Transport: slockrueidis.New(client), FillPool: func(key string, duration time.Duration) {
		for range size {
			pop := client.B().Blpop().Key(key).Timeout(duration.Seconds()).Build()
			go client.Do(context.Background(), pop)
		}
		pops := func(line string) bool {
			return strings.Contains(line, options.ClientName) && strings.Contains(line, "cmd=blpop")
		}
		for count := 0; count < size; {
			list, _ := client.Do(context.Background(), client.B().ClientList().Build()).ToString()
			count = len(slices.DeleteFunc(strings.Split(list, "\n"), func(line string) bool { return !pops(line) }))
		}
	}}, nil
}
