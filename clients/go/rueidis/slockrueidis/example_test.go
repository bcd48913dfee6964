package slockrueidis_test

import (
	"log"

	"github.com/redis/rueidis"

	"slock.example/go"
	"slock.example/go/rueidis/slockrueidis"
)

func Example() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locks := slock.NewWith(slockrueidis.New(client))
	defer locks.Close()
}
