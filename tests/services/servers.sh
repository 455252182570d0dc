#!/usr/bin/env bash
# Real destinations of sinks for tests and local runs: InfluxDB 1.x and VictoriaLogs (Loki's push API). Needs bash and Go.
#   servers.sh install influxdb|victorialogs|all        build into the cache from their Go modules, once (minutes)
#   servers.sh path    influxdb|victorialogs            the program's path
#   servers.sh start   influxdb|victorialogs DIR PORT   on 127.0.0.1:PORT, data and log in DIR; returns when it answers
#   servers.sh stop DIR [SECONDS]                       SIGTERM, SIGKILL after SECONDS (10); data stays in DIR
#   servers.sh kill DIR                                 SIGKILL at once (crash tests)
#   servers.sh status DIR | pid DIR
#   Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not running (status, pid), 4 Go is missing or too old
# Environment: MLOPS_EVENTS_CACHE, SERVER_OWNER_PID (the server is killed when that process is gone),
#   INFLUX_USER, INFLUX_PASSWORD (admin, adminpw: made at the first start; without them nobody gets in),
#   INFLUXDB_SECTION_NAME (influxd reads these itself, such as INFLUXDB_HTTP_MAX_BODY_SIZE=1000),
#   VICTORIALOGS_FLAGS (more flags, split at blanks)
set -euo pipefail
umask 077
INFLUXDB_VERSION=1.13.2 # not exported: influxd does not see it
VICTORIALOGS_VERSION=1.52.1
CACHE=${MLOPS_EVENTS_CACHE:-$HOME/.cache/mlops-events}
PROG=servers.sh

say() { printf '%s: %s\n' "$PROG" "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }

program() { # NAME
  case $1 in
    influxdb) echo "$CACHE/influxdb-$INFLUXDB_VERSION/influxd" ;;
    victorialogs) echo "$CACHE/victorialogs-$VICTORIALOGS_VERSION/victoria-logs" ;;
    *) usage ;;
  esac
}

# --- building -------------------------------------------------------------------------------------

need_go() { # exit code 4, for callers that then do without
  local found
  found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || found=""
  case $found in
    go1.2[6-9]* | go1.[3-9][0-9]*) return 0 ;;
  esac
  say "${found:-no go}; InfluxDB and VictoriaLogs are built with Go 1.26 or newer (https://go.dev/dl, macOS: brew install go)"
  exit 4
}

quiet_go() { # go, at low priority
  GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS="${GOFLAGS_HERE:--buildvcs=false}" nice -n 10 go "$@"
}

module() { # MODULE@VERSION: its folder in Go's cache
  quiet_go mod download -json "$1" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p'
}

build_victorialogs() { # DIR OUT
  GOBIN=$1 quiet_go install -trimpath -ldflags '-s -w' \
    "github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs@v$VICTORIALOGS_VERSION"
  mv "$1/victoria-logs" "$2"
}

# InfluxDB 1.x links Flux, a query engine that is off by default, and Flux links a library in Rust. Tests query in
# InfluxQL. So the build runs on a copy in which five small packages stand in for the engine: it takes no Rust and
# no C compiler, and a third fewer packages.
build_influxdb() { # DIR OUT
  local dir=$1 out=$2 influxdb flux version
  influxdb=$(module "github.com/influxdata/influxdb@v$INFLUXDB_VERSION")
  version=$(sed -n 's|^[[:space:]]*github.com/influxdata/flux \(v[^ ]*\).*|\1|p' "$influxdb/go.mod")
  flux=$(module "github.com/influxdata/flux@$version")
  cp -R "$influxdb" "$dir/influxdb"
  cp -R "$flux" "$dir/flux"
  chmod -R u+w "$dir"
  rm -rf "$dir/flux/libflux" "$dir/influxdb/flux/stdlib/influxdata/influxdb/"*.go "$dir/influxdb/storage/flux/"*.go
  mkdir -p "$dir/flux/libflux/go/libflux"
  cat >"$dir/flux/libflux/go/libflux/libflux.go" <<'GO'
// Package libflux stands in for the parser, in a server that never parses Flux.
package libflux

import (
	"context"
	"errors"

	"github.com/influxdata/flux/semantic"
)

var errNoFlux = errors.New("flux is not built into this server")

type (
	Options     struct{}
	ASTPkg      struct{}
	SemanticPkg struct{}
)

func NewOptions(context.Context) Options { return Options{} }

func (ASTPkg) ASTHandle()                    {}
func (ASTPkg) Format() (string, error)       { return "", errNoFlux }
func (ASTPkg) GetError(Options) error        { return errNoFlux }
func (*ASTPkg) MarshalJSON() ([]byte, error) { return nil, errNoFlux }
func (*ASTPkg) Free()                        {}

func (*SemanticPkg) MarshalFB() ([]byte, error) { return nil, errNoFlux }
func (*SemanticPkg) Free()                      {}

func Parse(string, string) *ASTPkg                              { return &ASTPkg{} }
func ParseString(string) *ASTPkg                                { return &ASTPkg{} }
func ParseJSON([]byte) (*ASTPkg, error)                         { return nil, errNoFlux }
func MergePackages(*ASTPkg, *ASTPkg) error                      { return errNoFlux }
func AnalyzeWithOptions(*ASTPkg, Options) (*SemanticPkg, error) { return nil, errNoFlux }
func SemanticPackages() (map[string]*semantic.Package, error)   { return nil, errNoFlux }
GO
  cat >"$dir/flux/runtime/lookup.go" <<'GO'
package runtime

import "github.com/influxdata/flux/semantic"

// Packages ask for the types of builtins when they are initialised; nothing uses them, so any type will do.
func LookupBuiltinType(pkg, name string) (semantic.MonoType, error) {
	return semantic.NewFunctionType(semantic.BasicInt, nil), nil
}

func MustLookupBuiltinType(pkg, name string) semantic.MonoType {
	t, _ := LookupBuiltinType(pkg, name)
	return t
}
GO
  cat >"$dir/influxdb/flux/init/init.go" <<'GO'
// Package init would register the builtins of Flux.
package init

func Initialize() { panic("flux is not built into this server: keep flux-enabled = false") }
GO
  cat >"$dir/influxdb/flux/stdlib/influxdata/influxdb/dependencies.go" <<'GO'
// Package influxdb would connect Flux to the storage.
package influxdb

import (
	"errors"

	"github.com/influxdata/flux"
)

func NewDependencies(...any) (flux.Dependency, error) {
	return nil, errors.New("flux is not built into this server")
}

func WithURLValidator(any) any { return nil }
GO
  cat >"$dir/influxdb/storage/flux/reader.go" <<'GO'
// Package storageflux would read series for Flux.
package storageflux

func NewReader(any) any { return nil }
GO
  (
    cd "$dir/influxdb"
    quiet_go mod edit -replace github.com/influxdata/flux=../flux
    GOFLAGS_HERE='-mod=mod -buildvcs=false' quiet_go build -trimpath \
      -ldflags "-s -w -X main.version=$INFLUXDB_VERSION" -o "$out" ./cmd/influxd
  )
}

install() { # NAME
  local file dir
  file=$(program "$1")
  if [ -x "$file" ]; then return 0; fi
  need_go
  mkdir -p "$(dirname "$file")"
  dir=$(mktemp -d "$(dirname "$file")/.build.XXXXXX")
  # shellcheck disable=SC2064
  trap "chmod -R u+w '$dir'; rm -rf '$dir'" EXIT # Go's cache is read-only, and so are copies of it
  say "building $1 into the cache (a few minutes, once)"
  if ! bash "$0" build "$1" "$dir" >"$dir/build.log" 2>&1; then
    tail -20 "$dir/build.log" >&2
    die "$1 was not built"
  fi
  mv "$dir/program" "$file" # one that another build put there is the same
}

# --- running --------------------------------------------------------------------------------------

alive() { # DIR -> 0 when its pid file names a live server of this DIR
  local pid
  [ -f "$1/pid" ] || return 1
  pid=$(cat "$1/pid")
  [ -n "$pid" ] || return 1
  case $(ps -ww -o args= -p "$pid" 2>/dev/null) in *"$1/"*) return 0 ;; esac
  return 1
}

http() { # PORT METHOD PATH [USER:PASSWORD]: prints the status of the answer, 000 if there is none
  local line=""
  {
    if exec 3<>"/dev/tcp/127.0.0.1/$1"; then
      printf '%s %s HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n' "$2" "$3" >&3
      [ -z "${4:-}" ] || printf 'Authorization: Basic %s\r\n' "$(printf %s "$4" | base64)" >&3
      printf '\r\n' >&3
      read -t 5 -r line <&3 || line=""
      exec 3>&-
    fi
  } 2>/dev/null
  case $line in HTTP/1.*) line=${line#* } && printf %s "${line:0:3}" ;; *) printf 000 ;; esac
}

watch() { # OWNER SERVER: no server stays behind when its owner is killed
  while kill -0 "$1"; do
    kill -0 "$2" || return 0
    sleep 2
  done
  kill -KILL "$2"
}

launch() { # NAME DIR PORT PROGRAM ARGS...
  local name=$1 dir=$2 port=$3 pid end
  shift 3
  nohup "$@" >>"$dir/server.log" 2>&1 </dev/null &
  pid=$!
  echo "$pid" >"$dir/pid"
  if [ -n "${SERVER_OWNER_PID:-}" ]; then watch "$SERVER_OWNER_PID" "$pid" </dev/null >/dev/null 2>&1 & fi
  end=$((SECONDS + 60))
  until [ "$(http "$port" GET /health)" = 200 ]; do
    kill -0 "$pid" 2>/dev/null || { tail -5 "$dir/server.log" >&2; rm -f "$dir/pid"; die "$name ended while starting"; }
    [ $SECONDS -lt $end ] || { kill -KILL "$pid" || true; tail -5 "$dir/server.log" >&2; die "$name: no answer within 60 s"; }
    sleep 0.05
  done
}

start_influxdb() { # DIR PORT
  local dir=$1 port=$2 user=${INFLUX_USER:-admin} password=${INFLUX_PASSWORD:-adminpw}
  case $user$password in *[!A-Za-z0-9_]*) die "only letters and digits in user and password" ;; esac
  cat >"$dir/influxdb.conf" <<P
reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
  dir = "$dir/meta"
[data]
  dir = "$dir/data"
  wal-dir = "$dir/wal"
  query-log-enabled = false
[monitor]
  store-enabled = false
[subscriber]
  enabled = false
[http]
  bind-address = "127.0.0.1:$port"
  auth-enabled = true
  log-enabled = false
P
  launch influxdb "$dir" "$port" "$(program influxdb)" run -config "$dir/influxdb.conf"
  if [ "$(http "$port" POST /query?q=SHOW+DATABASES "$user:$password")" != 200 ]; then
    [ "$(http "$port" POST "/query?q=CREATE+USER+%22$user%22+WITH+PASSWORD+'$password'+WITH+ALL+PRIVILEGES")" = 200 ] ||
      die "the user $user was not made"
  fi
}

start_victorialogs() { # DIR PORT
  # A line that is a JSON object stays a line, as Loki keeps it.
  # shellcheck disable=SC2086
  launch victorialogs "$1" "$2" "$(program victorialogs)" -httpListenAddr="127.0.0.1:$2" -storageDataPath="$1/data" \
    -retentionPeriod=100y -loki.disableMessageParsing -memory.allowedBytes=256MiB -inmemoryDataFlushInterval=1s \
    ${VICTORIALOGS_FLAGS:-}
}

start() { # NAME DIR PORT
  local dir
  install "$1"
  mkdir -p "$2"
  dir=$(cd "$2" && pwd -P)
  if alive "$dir"; then say "already running (pid $(cat "$dir/pid"))"; return 0; fi
  if (exec 3<>"/dev/tcp/127.0.0.1/$3") 2>/dev/null; then die "port $3 is in use"; fi
  "start_$1" "$dir" "$3"
  say "$1 on 127.0.0.1:$3 (pid $(cat "$dir/pid"))"
}

finish() { # DIR SECONDS SIGNAL
  local dir pid end
  [ -d "$1" ] || die "no such folder: $1"
  dir=$(cd "$1" && pwd -P)
  if ! alive "$dir"; then rm -f "$dir/pid"; return 0; fi
  pid=$(cat "$dir/pid")
  kill "-$3" "$pid"
  kill -CONT "$pid" 2>/dev/null || true # one that was stopped does not hear SIGTERM
  end=$((SECONDS + $2))
  while alive "$dir"; do
    if [ $SECONDS -ge "$end" ]; then say "no end after $2 s: SIGKILL"; kill -KILL "$pid" 2>/dev/null || true; sleep 0.3; break; fi
    sleep 0.05
  done
  rm -f "$dir/pid"
}

case ${1:-} in
  install)
    [ $# -eq 2 ] || usage
    if [ "$2" = all ]; then install victorialogs && install influxdb; else install "$2"; fi ;;
  build) [ $# -eq 3 ] || usage; "build_$2" "$3" "$3/program" ;; # in a shell of its own, where `set -e` holds
  path) [ $# -eq 2 ] || usage; program "$2" ;;
  start) [ $# -eq 4 ] || usage; start "$2" "$3" "$4" ;;
  stop) [ $# -ge 2 ] || usage; finish "$2" "${3:-10}" TERM ;;
  kill) [ $# -eq 2 ] || usage; finish "$2" 10 KILL ;;
  status) [ $# -eq 2 ] || usage; d=$(cd "$2" 2>/dev/null && pwd -P) || die "no such folder"; if alive "$d"; then echo running; else echo stopped; exit 3; fi ;;
  pid) [ $# -eq 2 ] || usage; d=$(cd "$2" 2>/dev/null && pwd -P) || die "no such folder"; alive "$d" || exit 3; cat "$d/pid" ;;
  *) usage ;;
esac
