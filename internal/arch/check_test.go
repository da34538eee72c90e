// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A problem is one broken rule at one place.
type problem struct {
	rule string // a word; testdata proves each
	at   string // file, with the line where there is one, or a package
	text string
}

func (p problem) String() string { return p.rule + " " + p.at + ": " + p.text }

// A checker walks one tree once and collects what breaks the rules.
type checker struct {
	rules    rules
	fset     *token.FileSet
	docs     map[string][]string // package -> files whose package clause has a comment
	problems []problem
}

// check returns the broken rules of a tree, sorted.
func check(tree fs.FS, r rules) ([]problem, error) {
	c := &checker{rules: r, fset: token.NewFileSet(), docs: map[string][]string{}}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if skipDir(name) {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular(), name == ".git": // a worktree's is a file
			return nil
		}
		return c.file(tree, name)
	})
	if err != nil {
		return nil, err
	}
	c.packageDocs()
	slices.SortFunc(c.problems, func(a, b problem) int { return strings.Compare(a.String(), b.String()) })
	return c.problems, nil
}

// skipDir leaves out what is not source, or is a fault planted on purpose.
func skipDir(name string) bool {
	switch path.Base(name) {
	case ".git", "testdata", "node_modules", "bin", "out":
		return true
	}
	return false
}

func (c *checker) report(rule, at, format string, args ...any) {
	c.problems = append(c.problems, problem{rule, at, fmt.Sprintf(format, args...)})
}

// place is file:line of a node.
func (c *checker) place(n ast.Node) string {
	p := c.fset.Position(n.Pos())
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

func (c *checker) file(tree fs.FS, name string) error {
	text, err := fs.ReadFile(tree, name)
	if err != nil {
		return err
	}
	c.machinePaths(name, text)
	if path.Ext(name) != ".go" {
		return nil
	}
	f, err := parser.ParseFile(c.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	c.licence(name, text)
	c.imports(f, pkg, test)
	c.inits(f, name)
	if test {
		c.sleeps(f, name)
	} else {
		c.sizes(f, name, text)
		c.ambient(f, pkg)
	}
	if docs := c.docs[pkg]; f.Doc != nil {
		c.docs[pkg] = append(docs, name)
	} else if docs == nil {
		c.docs[pkg] = []string{}
	}
	return nil
}

// machinePath is the working folder of a build machine, which means nothing on
// another one.
var machinePath = regexp.MustCompile(`(^|[^\w.$})-])/(work|tmp/w)/`)

func (c *checker) machinePaths(name string, text []byte) {
	if bytes.IndexByte(text, 0) >= 0 || path.Base(name) == "check_test.go" {
		return // binary, or this file
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if machinePath.Match(line) {
			c.report("machine-path", fmt.Sprintf("%s:%d", name, i+1), "names a folder of one machine")
		}
	}
}

func (c *checker) licence(name string, text []byte) {
	if !bytes.HasPrefix(text, []byte("// SPDX-License-Identifier: Apache-2.0\n\n")) {
		c.report("licence", name, "first line must be the SPDX header, then a blank line")
	}
}

// packageDocs wants one package comment a package: none leaves the reader
// alone, two are printed one after the other by go doc.
func (c *checker) packageDocs() {
	for pkg, files := range c.docs {
		if len(files) != 1 {
			c.report("package-doc", pkg, "has %d package comments %v, want 1", len(files), files)
		}
	}
}

func (c *checker) imports(f *ast.File, pkg string, test bool) {
	allowed, known := lookup(c.rules.packages, pkg)
	if !known {
		c.report("table", pkg, "is not in the import table (%s)", c.place(f))
	}
	for _, spec := range f.Imports {
		target, _ := strconv.Unquote(spec.Path.Value)
		if ours, ok := strings.CutPrefix(target, module+"/"); ok {
			_, may := lookup(allowed, ours)
			if test && !may {
				_, may = lookup(c.rules.tests, ours)
			}
			if known && !may && ours != pkg {
				c.report("import", c.place(spec), "%s may not import %s", pkg, ours)
			}
			continue
		}
		if c.isSilent(pkg) && !test && (target == "log" || target == "log/slog") {
			c.report("log", c.place(spec), "%s never logs, it imports %s", pkg, target)
		}
		c.libraries(spec, pkg, target, test)
	}
}

func (c *checker) isSilent(pkg string) bool {
	_, silent := lookup(c.rules.silent, pkg)
	return silent
}

func (c *checker) libraries(spec *ast.ImportSpec, pkg, target string, test bool) {
	for name, lib := range c.rules.libraries {
		if test || target != name && !strings.HasPrefix(target, name+"/") {
			continue
		}
		if !slices.ContainsFunc(lib.only, func(pattern string) bool { return matches(pattern, pkg) }) {
			c.report("library", c.place(spec), "%s may not import %s: %s", pkg, target, lib.reason)
		}
	}
}

func (c *checker) inits(f *ast.File, name string) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Name.Name != "init" {
			continue
		}
		if _, ok := c.rules.inits[name]; !ok {
			c.report("init", c.place(fn), "init runs behind the reader's back: construct it where it is used")
		}
	}
}

func (c *checker) sizes(f *ast.File, name string, text []byte) {
	if n := bytes.Count(text, []byte("\n")); n > maxFileLines {
		c.report("file-size", name, "%d lines, at most %d", n, maxFileLines)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := c.fset.Position(fn.End()).Line - c.fset.Position(fn.Pos()).Line + 1; n > maxFunctionLines {
			c.report("function-size", c.place(fn), "%s has %d lines, at most %d", fn.Name.Name, n, maxFunctionLines)
		}
	}
}

// ambientUses are the ways to reach the process's surroundings.
var ambientUses = map[string]bool{
	"os.Exit": true, "os.Getenv": true, "os.LookupEnv": true, "os.Environ": true, "os.ExpandEnv": true,
	"os.Setenv": true, "os.Unsetenv": true, "syscall.Getenv": true, "syscall.Environ": true,
	"log.Fatal": true, "log.Fatalf": true, "log.Fatalln": true,
}

// ambient keeps flags, the environment and os.Exit in the commands: everything
// else is told what it needs, so that two of it can run in one process.
func (c *checker) ambient(f *ast.File, pkg string) {
	if _, ok := lookup(c.rules.ambient, pkg); ok || f.Name.Name == "main" {
		return
	}
	names := importNames(f)
	for _, spec := range f.Imports {
		if spec.Path.Value == `"flag"` {
			c.report("ambient", c.place(spec), "flag belongs in a command")
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if use := qualified(sel, names); ambientUses[use] {
				c.report("ambient", c.place(sel), "%s belongs in a command", use)
			}
		}
		return true
	})
}

// sleeps finds tests that wait on the real clock. Inside a call of
// synctest.Test, or of a helper in the same file that is such a call, the clock is
// fake and a sleep costs nothing.
func (c *checker) sleeps(f *ast.File, name string) {
	if _, ok := c.rules.sleeps[name]; ok {
		return
	}
	names := importNames(f)
	helpers := bubbleHelpers(f, names)
	guards := map[ast.Stmt]bool{} // of a select: <-time.After(d) is a deadline there
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			guards[n.Comm] = true
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && helpers[id.Name] {
				return false
			}
			switch calls(n, names) {
			case "testing/synctest.Test":
				return false
			case "time.Sleep":
				c.report("sleep", c.place(n), "a test waits for a condition, never for the clock")
			}
		case *ast.ExprStmt: // <-time.After(d) alone is a sleep as well
			if recv, ok := n.X.(*ast.UnaryExpr); ok && recv.Op == token.ARROW && !guards[n] {
				if call, ok := recv.X.(*ast.CallExpr); ok && calls(call, names) == "time.After" {
					c.report("sleep", c.place(n), "a test waits for a condition, never for the clock")
				}
			}
		}
		return true
	})
}

// bubbleHelpers are the functions of a file, other than tests, that run what they
// are given in a bubble.
func bubbleHelpers(f *ast.File, names map[string]string) map[string]bool {
	helpers := map[string]bool{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || strings.HasPrefix(fn.Name.Name, "Test") {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && calls(call, names) == "testing/synctest.Test" {
				helpers[fn.Name.Name] = true
			}
			return true
		})
	}
	return helpers
}

// calls is the qualified name of the called function, or "".
func calls(call *ast.CallExpr, names map[string]string) string {
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		return qualified(sel, names)
	}
	return ""
}

// importNames maps the name a file uses for a package to its path.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		target, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = target
	}
	return names
}

// qualified spells pkg.Name with the import path, or "" if x is no package.
func qualified(sel *ast.SelectorExpr, names map[string]string) string {
	id, ok := sel.X.(*ast.Ident)
	if !ok || names[id.Name] == "" {
		return ""
	}
	return names[id.Name] + "." + sel.Sel.Name
}

// lookup returns the most exact entry that covers pkg.
func lookup[V any](table map[string]V, pkg string) (V, bool) {
	best, found := "", false
	for pattern := range table {
		if matches(pattern, pkg) && (!found || len(pattern) > len(best)) {
			best, found = pattern, true
		}
	}
	return table[best], found
}

// matches reports whether pattern covers pkg; a pattern that ends in ... covers
// what is below it as well.
func matches(pattern, pkg string) bool {
	prefix, tree := strings.CutSuffix(pattern, "...")
	if !tree {
		return pattern == pkg
	}
	prefix = strings.TrimSuffix(prefix, "/")
	return prefix == "" || pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
}
