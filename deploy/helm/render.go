// Renders the chart with what Helm's engine is made of, Go's text/template and sprig, for machines without helm:
//   GO111MODULE=off GOPATH=/usr/share/gocode go run deploy/helm/render.go CHART VALUES...   (Debian's packages)
// Later values files override earlier ones. It adds include, toYaml and .Files.Get, which the chart uses, and nothing
// else of Helm: no hooks, no schema, no lookup. The release is called "cupilot".
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	sprig "github.com/Masterminds/sprig"
	yaml "gopkg.in/yaml.v3"
)

type files struct{ root string }

func (f files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(f.root, name))
	check(err)
	return string(text)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) map[string]interface{} {
	text, err := os.ReadFile(path)
	check(err)
	found := map[string]interface{}{}
	check(yaml.Unmarshal(text, &found))
	return found
}

func merge(into, from map[string]interface{}) {
	for name, value := range from {
		inner, ok := value.(map[string]interface{})
		present, also := into[name].(map[string]interface{})
		if ok && also {
			merge(present, inner)
		} else {
			into[name] = value
		}
	}
}

func main() {
	root := os.Args[1]
	values := read(filepath.Join(root, "values.yaml"))
	for _, path := range os.Args[2:] {
		merge(values, read(path))
	}
	chart := read(filepath.Join(root, "Chart.yaml"))
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value interface{}) string {
		var out bytes.Buffer
		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		check(encoder.Encode(value))
		return strings.TrimSuffix(out.String(), "\n")
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(root, "templates", "*"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = all.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	data := map[string]interface{}{
		"Values":  values,
		"Chart":   map[string]interface{}{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
		"Release": map[string]interface{}{"Name": "cupilot", "Service": "Helm", "Namespace": "cupilot"},
		"Files":   files{root},
	}
	for _, path := range paths {
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		var out bytes.Buffer
		check(all.ExecuteTemplate(&out, filepath.Base(path), data))
		if text := strings.Trim(out.String(), "-\n "); text != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", filepath.Base(path), text)
		}
	}
}
