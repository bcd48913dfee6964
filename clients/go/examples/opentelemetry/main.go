// Command opentelemetry exports the lock commands as spans under those of the program, and metrics of waits and holds.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"slock.example/go"
)

// hooks record how long requests wait and how long locks are held, and count what is lost.
func hooks(meter metric.Meter) (slock.Hooks, error) {
	waits, err := meter.Float64Histogram("slock.wait", metric.WithUnit("s"))
	if err != nil {
		return slock.Hooks{}, err
	}
	holds, err := meter.Float64Histogram("slock.hold", metric.WithUnit("s"))
	if err != nil {
		return slock.Hooks{}, err
	}
	losses, err := meter.Int64Counter("slock.losses")
	return slock.Hooks{
		Waited: func(ctx context.Context, label string, duration time.Duration, outcome string) {
			waits.Record(ctx, duration.Seconds(), metric.WithAttributes(
				attribute.String("lock", label), attribute.String("outcome", outcome)))
		},
		Held: func(ctx context.Context, label string, duration time.Duration) {
			holds.Record(ctx, duration.Seconds(), metric.WithAttributes(attribute.String("lock", label)))
		},
		Lost: func(ctx context.Context, label string, loss *slock.Error) {
			losses.Add(ctx, 1, metric.WithAttributes(
				attribute.String("lock", label), attribute.String("reason", string(loss.Reason))))
		},
	}, err
}

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address, printer{}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string, exporter trace.SpanExporter) error {
	tracing := trace.NewTracerProvider(trace.WithSyncer(exporter))
	defer tracing.Shutdown(ctx)
	metrics := sdkmetric.NewMeterProvider() // add a reader here
	defer metrics.Shutdown(ctx)

	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	if err := redisotel.InstrumentTracing(rdb, redisotel.WithTracerProvider(tracing)); err != nil {
		return err
	}
	recorded, err := hooks(metrics.Meter("example"))
	if err != nil {
		return err
	}
	locks := slock.New(rdb, slock.WithHooks(recorded))
	defer locks.Close()

	ctx, span := tracing.Tracer("example").Start(ctx, "import")
	defer span.End()
	return locks.Write("example:import").Do(ctx, func(context.Context) error { return nil })
}

// printer stands for an exporter.
type printer struct{}

func (printer) ExportSpans(_ context.Context, spans []trace.ReadOnlySpan) error {
	for _, span := range spans {
		fmt.Printf("%s %q under %s\n", span.SpanContext().SpanID(), span.Name(), span.Parent().SpanID())
	}
	return nil
}

func (printer) Shutdown(context.Context) error { return nil }
