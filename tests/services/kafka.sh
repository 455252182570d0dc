#!/usr/bin/env bash
# A real Apache Kafka broker (KRaft, one node, combined mode) for tests and local runs. Needs only bash, java >= 17 and mvn.
#   kafka.sh install                    fetch the jars from Maven Central into the cache (about 45 MB), once
#   kafka.sh start DIR PORT             PLAINTEXT broker on 127.0.0.1:PORT, data and logs in DIR; returns when it answers
#   kafka.sh start-secure DIR PORT      SASL_SSL (SCRAM-SHA-512) + ACLs; writes DIR/secure/{ca.pem,passwords.env,admin.properties}
#   kafka.sh acl DIR PORT ARGS...       the Kafka ACL command as admin (secure broker only), e.g. --add --allow-principal ...
#   kafka.sh stop DIR [SECONDS]         SIGTERM by pid file, SIGKILL after SECONDS (30)
#   kafka.sh kill DIR                   SIGKILL at once (crash tests)
#   kafka.sh wait PORT [SECONDS]        until the broker on 127.0.0.1:PORT answers a Kafka request (60)
#   kafka.sh status DIR | pid DIR
#   Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not running (status, pid), 4 Java or Maven is missing
# Environment: KAFKA_VERSION (4.2.0), MLOPS_EVENTS_CACHE, KAFKA_HEAP (512m), KAFKA_JVM (more JVM options),
#   KAFKA_OVERRIDES (lines of server properties, appended last), KAFKA_CONTROLLER_PORT (PORT+1), KAFKA_HOST (127.0.0.1),
#   KAFKA_OWNER_PID (the broker is killed when that process is gone),
#   secure: KAFKA_ADMIN_PASSWORD, KAFKA_PRODUCER_PASSWORD, KAFKA_WORKER_PASSWORD (default: random, kept in DIR/secure)
set -euo pipefail
umask 077
VERSION=${KAFKA_VERSION:-4.2.0}
CACHE=${MLOPS_EVENTS_CACHE:-$HOME/.cache/mlops-events}
HOME_K=$CACHE/kafka-$VERSION
LIB=$HOME_K/lib
HOST=${KAFKA_HOST:-127.0.0.1}
PROG=kafka.sh

say() { printf '%s: %s\n' "$PROG" "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }

missing() { # WHAT: exit code 4, for callers that then do without Kafka
  say "$1; Apache Kafka needs Java 17 or newer and Maven (Debian, Ubuntu: apt-get install openjdk-17-jre-headless maven; macOS: brew install openjdk maven)"
  exit 4
}

need_java() { # sets JSA, the class-data archive of this Java
  local full
  command -v java >/dev/null || missing "no java"
  full=$(java -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -1)
  [ -n "$full" ] || missing "java does not run"
  [ "${full%%[!0-9]*}" -ge 17 ] || missing "java $full is too old"
  JSA=$HOME_K/broker-java$full.jsa
}

install() {
  need_java
  if [ -f "$HOME_K/.complete" ]; then return 0; fi
  command -v mvn >/dev/null || missing "no mvn"
  mkdir -p "$CACHE"
  local tmp
  tmp=$(mktemp -d "$CACHE/.kafka-$VERSION.XXXXXX")
  cat >"$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-runtime</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$VERSION</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$VERSION</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>\${log4j}</version></dependency>
  </dependencies>
  <properties><log4j>${KAFKA_LOG4J:-2.25.3}</log4j></properties>
</project>
POM
  say "fetching Kafka $VERSION into the cache"
  if ! mvn -q -B -f "$tmp/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory="$tmp/lib" >"$tmp/mvn.log" 2>&1; then
    tail -20 "$tmp/mvn.log" >&2; rm -rf "$tmp"; die "mvn failed"
  fi
  ls "$tmp"/lib/kafka_2.13-"$VERSION".jar >/dev/null || die "no Kafka jar after mvn"
  : >"$tmp/.complete"
  # another install may have won the race: keep the winner
  if [ -e "$HOME_K" ] && [ ! -f "$HOME_K/.complete" ]; then rm -rf "$HOME_K"; fi
  if ! mv -T "$tmp" "$HOME_K" 2>/dev/null && [ ! -f "$HOME_K/.complete" ]; then
    mv "$tmp" "$HOME_K" || die "cannot move the jars into place"
  fi
  rm -rf "$tmp"
  say "installed ($(du -sm "$HOME_K" | cut -f1) MB)"
}

jrun() { # small helper JVM: format, acl
  java -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
    -Dlog4j2.configurationFile="$HOME_K/tools-log4j2.properties" -cp "$LIB/*" "$@"
}

log4j_files() {
  cat >"$HOME_K/tools-log4j2.properties" <<'P'
status = error
rootLogger.level = error
rootLogger.appenderRef.e.ref = E
appender.e.type = Console
appender.e.name = E
appender.e.target = SYSTEM_ERR
appender.e.layout.type = PatternLayout
appender.e.layout.pattern = %p %m%n
P
}

broker_log4j() { # DIR
  cat >"$1/log4j2.properties" <<P
status = error
rootLogger.level = ${KAFKA_LOG_LEVEL:-info}
rootLogger.appenderRef.f.ref = F
appender.f.type = RollingFile
appender.f.name = F
appender.f.fileName = $1/logs/server.log
appender.f.filePattern = $1/logs/server.log.%i
appender.f.layout.type = PatternLayout
appender.f.layout.pattern = %d{ISO8601} %p %c{1} %m%n
appender.f.policies.type = Policies
appender.f.policies.size.type = SizeBasedTriggeringPolicy
appender.f.policies.size.size = 10MB
appender.f.strategy.type = DefaultRolloverStrategy
appender.f.strategy.max = 3
P
}

alive() { # DIR -> 0 when the pid file names a live broker of this DIR
  local pid args
  [ -f "$1/kafka.pid" ] || return 1
  pid=$(cat "$1/kafka.pid"); [ -n "$pid" ] || return 1
  kill -0 "$pid" 2>/dev/null || return 1
  if [ -r "/proc/$pid/cmdline" ]; then args=$(tr '\0' ' ' <"/proc/$pid/cmdline"); else args=$(ps -ww -o args= -p "$pid" 2>/dev/null || true); fi
  case $args in *kafka.Kafka*"$1/server.properties"*) return 0 ;; esac
  return 1
}

port_open() { (exec 3<>"/dev/tcp/$HOST/$1") 2>/dev/null; }

answers() { # PORT: an ApiVersions v0 request over plain TCP; the reply starts with length, correlation id 7, error code 0
  local hex
  hex=$( { exec 3<>"/dev/tcp/$HOST/$1" || exit 1
    printf '\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff' >&3
    timeout 2 head -c 10 <&3 | od -An -tx1 | tr -d ' \n'; } 2>/dev/null ) || return 1
  [ "${hex:8:12}" = 000000070000 ]
}

answers_tls() { # PORT: the TLS handshake of the broker succeeds
  keytool -J-Xmx64m -printcert -sslserver "$HOST:$1" >/dev/null 2>&1
}

wait_port() { # PORT SECONDS
  local end=$((SECONDS + ${2:-60}))
  while :; do
    if port_open "$1" && answers "$1"; then return 0; fi
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

common_props() { # DIR PORT CPORT
  cat <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@$HOST:$3
controller.listener.names=CONTROLLER
log.dirs=$1/data
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
background.threads=4
num.recovery.threads.per.data.dir=2
log.retention.hours=168
delete.topic.enable=true
controlled.shutdown.enable=true
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
P
}

format() { # DIR [--add-scram ...]
  local dir=$1; shift
  if [ -f "$dir/data/meta.properties" ]; then return 0; fi
  local id
  id=$(jrun kafka.tools.StorageTool random-uuid | tail -1)
  jrun kafka.tools.StorageTool format -t "$id" -c "$dir/server.properties" "$@" >"$dir/logs/format.log" 2>&1 \
    || { cat "$dir/logs/format.log" >&2; die "formatting the storage failed"; }
}

watch() { # OWNER BROKER: no broker stays behind when its owner is killed
  while kill -0 "$1"; do
    kill -0 "$2" || return 0
    sleep 2
  done
  kill -KILL "$2"
}

launch() { # DIR PORT secure?
  local dir=$1 port=$2 secure=$3 pid end cds
  cds=()
  if [ "${KAFKA_CDS:-1}" = 1 ]; then # class-data sharing: written at the end of the first run, halves later starts
    cds=(-Xshare:auto -XX:SharedArchiveFile="$JSA" -Xlog:cds=off -Xlog:cds+dynamic=off)
    if [ ! -f "$JSA" ]; then cds=(-XX:ArchiveClassesAtExit="$JSA.$$" -Xlog:cds=off -Xlog:cds+dynamic=off); echo "$JSA.$$" >"$dir/cds.new"; fi
  fi
  broker_log4j "$dir"
  if [ -f "$dir/logs/server.log" ]; then mv "$dir/logs/server.log" "$dir/logs/server.previous.log"; fi
  # shellcheck disable=SC2086
  nohup java -Xms128m -Xmx"${KAFKA_HEAP:-512m}" -XX:+UseSerialGC -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError \
    "${cds[@]}" -Djava.awt.headless=true -Dlog4j2.configurationFile="$dir/log4j2.properties" ${KAFKA_JVM:-} \
    -cp "$LIB/*" kafka.Kafka "$dir/server.properties" >"$dir/logs/stdout.log" 2>&1 </dev/null &
  pid=$!
  echo "$pid" >"$dir/kafka.pid"
  if [ -n "${KAFKA_OWNER_PID:-}" ]; then watch "$KAFKA_OWNER_PID" "$pid" </dev/null >/dev/null 2>&1 & fi
  end=$((SECONDS + ${KAFKA_START_TIMEOUT:-60}))
  while :; do
    if ! kill -0 "$pid" 2>/dev/null; then
      tail -5 "$dir/logs/stdout.log" >&2; grep -m5 -E 'FATAL|ERROR|Exception' "$dir/logs/server.log" >&2 || true
      rm -f "$dir/kafka.pid"; die "the broker ended while starting"
    fi
    if grep -q 'Kafka Server started' "$dir/logs/server.log" 2>/dev/null; then
      if [ "$secure" = 1 ]; then answers_tls "$port" && return 0; else answers "$port" && return 0; fi
    fi
    [ $SECONDS -lt $end ] || { kill -9 "$pid" 2>/dev/null || true; die "no answer within ${KAFKA_START_TIMEOUT:-60} s"; }
    sleep 0.1
  done
}

prepare() { # DIR PORT
  install
  [ -f "$HOME_K/tools-log4j2.properties" ] || log4j_files
  mkdir -p "$1/logs"
  DIR=$(cd "$1" && pwd -P)
  PORT=$2
  CPORT=${KAFKA_CONTROLLER_PORT:-$((PORT + 1))}
  if alive "$DIR"; then say "already running (pid $(cat "$DIR/kafka.pid"))"; exit 0; fi
  local p
  for p in "$PORT" "$CPORT"; do if port_open "$p"; then die "port $p is in use"; fi; done
}

start() {
  prepare "$1" "$2"
  if [ -d "$DIR/secure" ]; then die "$DIR belongs to a secure broker: use start-secure"; fi
  { common_props "$DIR" "$PORT" "$CPORT"
    cat <<P
listeners=PLAINTEXT://$HOST:$PORT,CONTROLLER://$HOST:$CPORT
advertised.listeners=PLAINTEXT://$HOST:$PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
P
    printf '%s\n' "${KAFKA_OVERRIDES:-}"; } >"$DIR/server.properties"
  format "$DIR"
  launch "$DIR" "$PORT" 0
  say "Kafka $VERSION on $HOST:$PORT (pid $(cat "$DIR/kafka.pid"))"
}

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

certs() { # DIR/secure: a CA and one certificate for the broker, by keytool alone
  local s=$1 pw=$2
  [ -f "$s/broker.p12" ] && return 0
  local k=(keytool -J-Xmx64m -storetype PKCS12 -storepass:env KS_PW) san="dns:localhost,ip:127.0.0.1"
  export KS_PW=$pw
  if [ "$HOST" != 127.0.0.1 ]; then case $HOST in *[!0-9.]*) san="$san,dns:$HOST" ;; *) san="$san,ip:$HOST" ;; esac; fi
  "${k[@]}" -genkeypair -keystore "$s/ca.p12" -alias ca -keyalg EC -groupname secp256r1 -validity 3650 -dname "CN=mlops-events test CA" \
    -ext bc:c=ca:true,pathlen:0 -ext ku:c=keyCertSign,cRLSign 2>/dev/null
  "${k[@]}" -exportcert -rfc -keystore "$s/ca.p12" -alias ca >"$s/ca.pem" 2>/dev/null
  "${k[@]}" -genkeypair -keystore "$s/broker.tmp" -alias broker -keyalg EC -groupname secp256r1 -validity 825 -dname "CN=broker" 2>/dev/null
  "${k[@]}" -certreq -keystore "$s/broker.tmp" -alias broker 2>/dev/null |
    "${k[@]}" -gencert -rfc -keystore "$s/ca.p12" -alias ca -validity 825 -ext san="$san" -ext ku:c=digitalSignature -ext eku=serverAuth,clientAuth >"$s/broker.pem" 2>/dev/null
  "${k[@]}" -importcert -noprompt -keystore "$s/broker.tmp" -alias ca -file "$s/ca.pem" 2>/dev/null
  "${k[@]}" -importcert -noprompt -keystore "$s/broker.tmp" -alias broker -file "$s/broker.pem" 2>/dev/null
  "${k[@]}" -importcert -noprompt -keystore "$s/trust.p12" -alias ca -file "$s/ca.pem" 2>/dev/null
  mv "$s/broker.tmp" "$s/broker.p12"
}

start_secure() {
  prepare "$1" "$2"
  local s=$DIR/secure
  if [ -f "$DIR/data/meta.properties" ] && [ ! -d "$s" ]; then die "$DIR belongs to a plain broker: use start"; fi
  mkdir -p "$s"
  if [ ! -f "$s/passwords.env" ]; then
    { echo "KAFKA_ADMIN_PASSWORD=${KAFKA_ADMIN_PASSWORD:-$(secret)}"
      echo "KAFKA_PRODUCER_PASSWORD=${KAFKA_PRODUCER_PASSWORD:-$(secret)}"
      echo "KAFKA_WORKER_PASSWORD=${KAFKA_WORKER_PASSWORD:-$(secret)}"
      echo "KAFKA_STORE_PASSWORD=$(secret)"; } >"$s/passwords.env"
  fi
  # shellcheck disable=SC1091
  . "$s/passwords.env"
  certs "$s" "$KAFKA_STORE_PASSWORD"
  { common_props "$DIR" "$PORT" "$CPORT"
    cat <<P
listeners=CLIENT://$HOST:$PORT,CONTROLLER://$HOST:$CPORT
advertised.listeners=CLIENT://$HOST:$PORT
listener.security.protocol.map=CLIENT:SASL_SSL,CONTROLLER:SSL
inter.broker.listener.name=CLIENT
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.client.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="$KAFKA_ADMIN_PASSWORD";
listener.name.controller.ssl.client.auth=required
ssl.keystore.type=PKCS12
ssl.keystore.location=$s/broker.p12
ssl.keystore.password=$KAFKA_STORE_PASSWORD
ssl.key.password=$KAFKA_STORE_PASSWORD
ssl.truststore.type=PKCS12
ssl.truststore.location=$s/trust.p12
ssl.truststore.password=$KAFKA_STORE_PASSWORD
ssl.enabled.protocols=TLSv1.3,TLSv1.2
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:admin;User:CN=broker
connection.failed.authentication.delay.ms=200
P
    printf '%s\n' "${KAFKA_OVERRIDES:-}"; } >"$DIR/server.properties"
  cat >"$s/admin.properties" <<P
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="$KAFKA_ADMIN_PASSWORD";
ssl.truststore.type=PEM
ssl.truststore.location=$s/ca.pem
P
  format "$DIR" --add-scram "SCRAM-SHA-512=[name=admin,password=$KAFKA_ADMIN_PASSWORD]" \
    --add-scram "SCRAM-SHA-512=[name=producer,password=$KAFKA_PRODUCER_PASSWORD]" \
    --add-scram "SCRAM-SHA-512=[name=worker,password=$KAFKA_WORKER_PASSWORD]"
  launch "$DIR" "$PORT" 1
  say "Kafka $VERSION, SASL_SSL/SCRAM-SHA-512 with ACLs, on $HOST:$PORT (pid $(cat "$DIR/kafka.pid"))"
}

acl() { # DIR PORT ARGS...
  local dir=$1 port=$2; shift 2
  install
  [ -f "$HOME_K/tools-log4j2.properties" ] || log4j_files
  jrun org.apache.kafka.tools.AclCommand --bootstrap-server "$HOST:$port" --command-config "$dir/secure/admin.properties" "$@"
}

gone() { # DIR: after the process ended
  rm -f "$1/kafka.pid"
  if [ -f "$1/cds.new" ]; then
    local f; f=$(cat "$1/cds.new")                      # .../broker-javaX.jsa.PID: keep it, unless another run was first
    if [ -s "$f" ] && [ ! -f "${f%.*}" ]; then mv "$f" "${f%.*}"; else rm -f "$f"; fi
    rm -f "$1/cds.new"
  fi
}

stop() { # DIR SECONDS SIGNAL
  local dir pid end
  [ -d "$1" ] || die "no such folder: $1"
  dir=$(cd "$1" && pwd -P)
  if ! alive "$dir"; then say "not running"; rm -f "$dir/kafka.pid"; return 0; fi
  pid=$(cat "$dir/kafka.pid")
  kill "-${3:-TERM}" "$pid"
  end=$((SECONDS + ${2:-30}))
  while kill -0 "$pid" 2>/dev/null; do
    if [ $SECONDS -ge $end ]; then say "no end after ${2:-30} s: SIGKILL"; kill -KILL "$pid" 2>/dev/null || true; sleep 0.3; break; fi
    sleep 0.1
  done
  gone "$dir"
}

case ${1:-} in
  install) install ;;
  start) [ $# -eq 3 ] || usage; start "$2" "$3" ;;
  start-secure) [ $# -eq 3 ] || usage; start_secure "$2" "$3" ;;
  acl) [ $# -ge 4 ] || usage; shift; acl "$@" ;;
  stop) [ $# -ge 2 ] || usage; stop "$2" "${3:-30}" ;;
  kill) [ $# -eq 2 ] || usage; stop "$2" 10 KILL ;;
  wait) [ $# -ge 2 ] || usage; wait_port "$2" "${3:-60}" || die "no answer on port $2" ;;
  status) [ $# -eq 2 ] || usage; d=$(cd "$2" 2>/dev/null && pwd -P) || die "no such folder"; if alive "$d"; then echo running; else echo stopped; exit 3; fi ;;
  pid) [ $# -eq 2 ] || usage; d=$(cd "$2" && pwd -P); alive "$d" || exit 3; cat "$d/kafka.pid" ;;
  *) usage ;;
esac
