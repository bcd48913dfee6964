package slock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"slock.example/go/internal/testserver"
)

// run runs a program, and checks what it prints.
func run(t *testing.T, says string, arguments ...string) {
	t.Helper()
	output, err := exec.Command("go", append([]string{"run"}, arguments...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(output), says) {
		t.Errorf("%v: %v\n%s", arguments, err, output)
	}
}

func TestExamplePrograms(t *testing.T) {
	address := testserver.New(t).Addr
	for name, says := range map[string]string{
		"block":   "the second block: slock: timed out after 1",
		"fenced":  "the late write of the first owner was rejected",
		"leader":  "steps down\ncandidate ",
		"workers": "the counter is 2000",
	} {
		run(t, says, "./examples/"+name, "-address", address)
	}
}

// texts are those of the files, without the white space at the beginnings and ends of lines.
func texts(paths ...string) string {
	space := regexp.MustCompile(`(?m)^[\t ]+|[\t ]+$`)
	var all strings.Builder
	for _, path := range paths {
		all.WriteString(space.ReplaceAllString(string(must(os.ReadFile(path))), "") + "\n")
	}
	return all.String()
}

// The code of the page is that of tests and of programs that are tested, or compiled.
func TestReadme(t *testing.T) {
	var sources []string
	for _, pattern := range []string{"*_test.go", "slocktest/*_test.go", "rueidis/*/*_test.go", "examples/*/*.go"} {
		sources = append(sources, must(filepath.Glob(pattern))...)
	}
	source, page := texts(sources...), texts("README.md")
	page, _, _ = strings.Cut(page, "## Moving")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```(?:\n\nprints `(.*?)`)?").FindAllStringSubmatch(page, -1)
	path := filepath.Join(t.TempDir(), "main.go")
	program := strings.Replace(blocks[0][1], "localhost:6379", testserver.New(t).Addr, 1)
	if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, blocks[0][2]+"\n", path)
	for _, block := range blocks[1:] {
		if !strings.Contains(source, block[1]) {
			t.Errorf("no test has this:\n%s", block[1])
		}
	}
	for _, code := range regexp.MustCompile("`((?:locks|hold|slock|server)\\.[^`\n]*\\()([^`\n]*)`").FindAllStringSubmatch(page, -1) {
		if !strings.Contains(source, code[1]) {
			t.Errorf("no test has %s", code[1])
		}
	}
}
