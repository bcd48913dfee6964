package slock_test

import (
	"os/exec"
	"strings"
	"testing"
)

func TestExamplePrograms(t *testing.T) {
	s := newServer(t)
	for _, program := range []struct{ name, says string }{
		{"workers", "the counter is 2000"},
		{"block", "the second block has waited"},
		{"fenced", "the late write of the first owner was refused"},
		{"opentelemetry", "slock.hold"},
	} {
		output, err := exec.Command("go", "run", "./examples/"+program.name, "-address", s.addr).CombinedOutput()
		if err != nil || !strings.Contains(string(output), program.says) {
			t.Errorf("%s: %v\n%s", program.name, err, output)
		}
	}
}
