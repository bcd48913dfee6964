package main

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"slock.example/go/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// kept lets the exporter keep its spans after Shutdown.
type kept struct{ *tracetest.InMemoryExporter }

func (kept) Shutdown(context.Context) error { return nil }

var _ trace.SpanExporter = kept{}

// The commands of the lock are spans under that of the program.
func TestTrace(t *testing.T) {
	testserver.Need(t)
	exporter := tracetest.NewInMemoryExporter()
	if err := run(t.Context(), testserver.Shared.Addr, kept{exporter}); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	program := spans[len(spans)-1]
	found := map[string]int{}
	for _, span := range spans[:len(spans)-1] {
		if span.Parent.SpanID() == program.SpanContext.SpanID() {
			found[strings.ToUpper(span.Name)]++
		}
	}
	if program.Name != "import" || found["SLOCK.LOCK"] != 1 || found["SLOCK.MUNLOCK"] != 1 {
		t.Fatal(program.Name, found)
	}
}
