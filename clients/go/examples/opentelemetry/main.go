// Command opentelemetry records how long requests wait, how long holds last, and what is lost, by the hooks.
//
// It has no dependency on OpenTelemetry: recorder and counter have the methods that metric.Float64Histogram and
// metric.Int64Counter need. In a program they are made like this:
//
//	meter := otel.Meter("slock")
//	waits, err := meter.Float64Histogram("slock.wait", metric.WithUnit("s"))
//
//	func (h otelHistogram) Record(seconds float64, attributes ...string) {
//		var all []attribute.KeyValue
//		for i := 0; i < len(attributes); i += 2 {
//			all = append(all, attribute.String(attributes[i], attributes[i+1]))
//		}
//		h.Float64Histogram.Record(context.Background(), seconds, metric.WithAttributes(all...))
//	}
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// recorder is a histogram. Attributes are names, each with its value after it.
type recorder interface {
	Record(seconds float64, attributes ...string)
}

// counter counts.
type counter interface {
	Add(n int64, attributes ...string)
}

// instruments are what a program makes of its meter.
type instruments struct {
	waits, holds     recorder
	losses, failures counter
}

// hooks tell the instruments what happens. Recording must not block.
func (i instruments) hooks() slock.Hooks {
	return slock.Hooks{
		Waited: func(label string, duration time.Duration, outcome string) {
			i.waits.Record(duration.Seconds(), "lock", label, "outcome", outcome)
		},
		Held: func(label string, duration time.Duration) { i.holds.Record(duration.Seconds(), "lock", label) },
		Lost: func(label string, reason slock.Reason) {
			i.losses.Add(1, "lock", label, "reason", string(reason))
		},
		RenewalFailed: func(label string, _ error) { i.failures.Add(1, "lock", label, "of", "renewal") },
		ReleaseFailed: func(label string, _ error) { i.failures.Add(1, "lock", label, "of", "release") },
	}
}

// printed stands for an instrument of OpenTelemetry.
type printed string

func (p printed) Record(_ float64, attributes ...string) { fmt.Println(string(p), attributes) }
func (p printed) Add(n int64, attributes ...string)      { fmt.Println(string(p), n, attributes) }

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	i := instruments{
		waits: printed("slock.wait"), holds: printed("slock.hold"),
		losses: printed("slock.losses"), failures: printed("slock.failures"),
	}
	locks := slock.New(rdb, slock.WithHooks(i.hooks()))
	defer locks.Close()
	return locks.Write("example:measured").With(slock.Label("import")).Do(ctx, func(context.Context) error {
		fmt.Println("working")
		return nil
	})
}
