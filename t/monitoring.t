# The files of monitoring/ at work: real exporters ask a real server, Prometheus scrapes one of the
# exporters and evaluates the rules, promtool runs the unit tests of the rules.
#
# Protects from: a query failing on a server, or returning null, also while nodes are away; a query
# needing more rights than a role without any has; a metric arriving under another name than
# rules and dashboard have; a name against Prometheus' rules; an alert that does not notice a lost
# node or lease, or failing locks; an alert while all is well.

use strict;
use warnings;

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @missing = grep {
	my $program = $_;
	!grep { -x "$_/$program" } split /:/, $ENV{PATH}
} qw(prometheus promtool prometheus-sql-exporter prometheus-postgres-exporter);
die "@missing must not be missing here\n" if @missing && ($ENV{CI} // '') eq 'true';
plan skip_all => "no @missing here; scripts/deps.sh installs them where there are packages" if @missing;

my $rules = 'monitoring/prometheus';
my $dir = PostgreSQL::Test::Utils::tempdir();
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(exporter prometheus);
my %metrics = map { my ($name, @rest) = split /\t/; $name => \@rest } split /\n/, qx(scripts/monitoring.pl list);
my (@servers, $out);

END
{
	my $exit_code = $?;

	$_->kill_kill foreach @servers;
	$? = $exit_code;
}

cmp_ok(scalar keys %metrics, '>', 20, 'there are metrics');

# ---- the files alone ----

foreach my $command (
	[qw(check rules), "$rules/rules.yml", "$rules/job_rules.yml"],
	[qw(check config), "$rules/prometheus.yml"],
	[qw(test rules), "$rules/rules_test.yml"])
{
	ok(IPC::Run::run([ 'promtool', @$command ], '>&', \$out), "promtool @$command[0, 1]") or diag($out);
}

# ---- the servers ----

my @nodes = map { redis_node(conf => [qw(--maxmemory 1gb)]) } 1 .. 3;
my $host = redlock_cluster('a', nodes => \@nodes, conf => "cluster_name = 'a'\nlisten_addresses = '127.0.0.1'");
my $s = session($host);
my $url = sprintf 'postgres://monitor@127.0.0.1:%s/postgres?sslmode=disable', $host->port;

# As docs/how-to/monitoring.md says.
$host->safe_psql('postgres', 'CREATE ROLE monitor LOGIN; CREATE POLICY monitor ON redlock_runs FOR SELECT TO monitor USING (true)');

# Copies a file with changes, and returns the path of the copy.
sub changed
{
	my ($path, @changes) = @_;
	my $text = slurp_file($path);

	while (my ($pattern, $new) = splice @changes, 0, 2)
	{
		$text =~ s/$pattern/$new/g or die "$path: no $pattern";
	}
	my $copy = "$dir/" . $path =~ s/.*\///r;
	append_to_file($copy, $text);
	return $copy;
}

my $exporter_conf = changed('monitoring/sql_exporter/redlock.yml',
	qr/postgres:.*/ => $url,
	qr/interval: .*/ => 'interval: 1s');
my $prometheus_conf = changed("$rules/prometheus.yml",
	qr/localhost:9237/ => "127.0.0.1:$port{exporter}",
	qr/scrape_interval: .*/ => 'scrape_interval: 1s',
	qr/\A/ => "global: {evaluation_interval: 1s}\n");
changed("$rules/rules.yml", qr/for: 2m/ => 'for: 1s');

# Starts a program.
sub start
{
	my ($log, @command) = @_;

	push @servers, IPC::Run::start(\@command, '<', \undef, '>&', "$dir/$log.log");
	return;
}

start('exporter', 'prometheus-sql-exporter', '-config.file', $exporter_conf, '-web.listen-address', "127.0.0.1:$port{exporter}");
start('prometheus', 'prometheus', "--config.file=$prometheus_conf", "--storage.tsdb.path=$dir/tsdb",
	"--web.listen-address=127.0.0.1:$port{prometheus}");

sub get
{
	my ($url) = @_;
	my $reply = HTTP::Tiny->new(timeout => 10)->get($url);

	return $reply->{success} ? $reply->{content} : undef;
}

# The series that Prometheus finds: hashes with labels and value.
sub found
{
	my ($query) = @_;
	my $encoded = $query =~ s/([^\w.])/sprintf '%%%02x', ord $1/ger;
	my $reply = get("http://127.0.0.1:$port{prometheus}/api/v1/query?query=$encoded") // return ();

	return map { { %{ $_->{metric} }, value => $_->{value}[1] } } @{ decode_json($reply)->{data}{result} };
}

# The only value that Prometheus finds.
sub value
{
	my @found = found(@_);
	return @found == 1 ? $found[0]{value} : @found . ' values';
}

sub wait_value
{
	my ($query, $value) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { value($query) eq $value }, "$query is $value") or diag(value($query), "\n", slurp_file("$dir/exporter.log"));
	return;
}

# Metrics of the source that Prometheus does not have.
sub absent
{
	my %there = map { $_->{__name__} => 1 } found('{__name__=~"redlock_.+"}');
	return join ' ', grep { !$there{$_} } sort keys %metrics;
}

# Without the alerts on slow nodes and on hosts: the machine of the test may be slow, and the second
# server comes and goes.
sub alerts { return join ' ', sort map { "$_->{alertname} $_->{alertstate}" } found('ALERTS{alertname!~"RedlockJobFailed|RedlockNodeSlow|RedlockHostVanished"}'); }

# ---- all is well ----

$s->query("CALL redlock_run('good', 'SELECT 1', record => true)");
like($s->run("CALL redlock_run('bad', 'SELECT 1/0', record => true)")->{state}, qr/22012/, 'a job fails');
$host->poll_query_until('postgres', "SELECT status = 'failed' FROM redlock_runs WHERE resource = 'bad'");
$s->query("SELECT redlock_acquire('held', scope => 'session')");

wait_until(sub { absent() eq '' }, 'all metrics are there') or diag(absent(), "\n", slurp_file("$dir/exporter.log"));
wait_value('redlock_locks_current{state="held"}', 1);
wait_value('redlock_stats_locks', 1);
is(value('redlock_stats_granted_total > 2'), 3, 'grants');
is(value('redlock_stats_broker_up'), 1, 'a broker');
is((found('redlock_stats_broker_up'))[0]{instance}, '127.0.0.1:' . $host->port, 'the instance is the server, not the exporter');
is(value("redlock_quorum_$_->[0]\{list=\"now\"}"), $_->[1], $_->[0]) foreach [ nodes => 3 ], [ nodes_ready => 3 ], [ nodes_required => 2 ];
is(value('count(redlock_nodes_ready == 1)'), 3, 'all nodes are ready');
is(value('count(redlock_nodes_rtt_seconds > 0 < 10)'), 3, 'answer times in seconds');
is(value('count(redlock_memory_limit_bytes == 1024 * 1024 * 1024)'), 3, 'limits in bytes');
is(value('count(redlock_memory_used_bytes / redlock_memory_limit_bytes < 0.1)'), 3, 'use of the memory');
is(value('count(redlock_node_commands_total > 0)'), 3, 'each node has got commands');
is(value('count(redlock_node_connects_total == 1)'), 3, 'by one connection');
is(value('sum(redlock_node_errors_total)'), 0, 'without errors');
is(value('count(redlock_node_errors_total)'), 15, 'of five classes');
is(value('count(redlock_node_answer_seconds_bucket{le="+Inf"} == ignoring (le) redlock_node_answer_seconds_count)'), 3,
	'the last bucket of the histogram has all answers');
is(value('count(redlock_node_answer_seconds_bucket >= ignoring (le) group_left () redlock_node_answer_seconds_bucket{le="0.000256"})'), 51,
	'17 buckets, each with those below');
is(value('count(histogram_quantile(0.99, redlock_node_answer_seconds_bucket) > 0 <= 8.388608)'), 3, 'of which Prometheus makes percentiles');
is(value('redlock_resources_acquired_total{resource="held"}'), 1, 'a lock has its acquisitions');
is(value('redlock_resources_wait_seconds_total{resource="held"} < bool 60'), 1, 'and its waits in seconds');
is(value('redlock_stats_wait_seconds_total >= scalar(sum(redlock_resources_wait_seconds_total)) - 0.001') =~ /^[\d.e-]+$/, 1, 'the sums have the waits of all locks');
wait_value('redlock_hosts_known', 1);
is(value('redlock_hosts_conflicting'), 0, 'no conflict');
is(value('redlock_hosts_refusing'), 0, 'this host takes locks');
is(value('time() - redlock_stats_now_seconds < bool 300'), 1, 'the time of the query');
is(value('redlock_hosts_warning'), 0, 'no host ignores conflicts');
wait_value('count(redlock_runs_last_failure_timestamp_seconds > 0)', 1);
is(value('time() - redlock_runs_last_success_timestamp_seconds{resource="good"} < bool 3600'), 1, 'a job has succeeded');
is(value('redlock_runs_last_success_timestamp_seconds{resource="bad"}'), 0, 'the other job has not');
wait_until(sub { join(' ', map { $_->{resource} } found('ALERTS{alertname="RedlockJobFailed"}')) eq 'bad' }, 'the alert names the job');
wait_until(sub { alerts() eq '' }, 'there are no other alerts') or diag(alerts());
is(value('count({col=~".+", __name__=~".*redlock.*"})'), '0 values', 'no label of sql_exporter is left');

# ---- names ----

my $text = '';
my $histogram = 'redlock_node_answer_seconds';
foreach my $name (sort keys %metrics)
{
	my ($type, undef, $help) = @{ $metrics{$name} };

	$text .= "# HELP $name $help\n# TYPE $name $type\n" unless $name =~ /^$histogram/;
	$text .= "# HELP $histogram $help\n# TYPE $histogram histogram\n" if $name eq "${histogram}_bucket";
	foreach my $series (found($name))
	{
		my $labels = join ',', map { "$_=\"$series->{$_}\"" } grep { !/^(?:__name__|value)$/ } sort keys %$series;
		$text .= "$name\{$labels} $series->{value}\n";
	}
}
ok(IPC::Run::run([qw(promtool check metrics)], '<', \$text, '>&', \$out), 'promtool accepts names, types and helps') or diag($out);
my $raw = get("http://127.0.0.1:$port{exporter}/metrics");
# without histograms, which sql_exporter lacks
my $own = join '', grep { /sql_redlock/ && !/sql_$histogram/ } split /^/, $raw;
ok(IPC::Run::run([qw(promtool check metrics)], '<', \$own, '>&', \$out), 'and the output of the exporter') or diag($out);

# ---- two servers and one exporter: their series must differ ----

my $second = redlock_cluster('b', nodes => \@nodes, conf => "cluster_name = 'b'\nlisten_addresses = '127.0.0.1'");
$second->safe_psql('postgres', 'CREATE ROLE monitor LOGIN');
my $free = PostgreSQL::Test::Cluster::get_free_port();
my $two = "$dir/two_servers.yml";
append_to_file($two, slurp_file($exporter_conf) =~ s{^( *- )\Q$url\E\n}{$1$url\n$1postgres://monitor\@127.0.0.1:@{[$second->port]}/postgres?sslmode=disable\n}mr);
start('two_servers', 'prometheus-sql-exporter', '-config.file', $two, '-web.listen-address', "127.0.0.1:$free");
wait_until(sub { 2 == (() = (get("http://127.0.0.1:$free/metrics") // '') =~ /^sql_redlock_stats\{.*col="broker_up".* 1$/mg) },
	'one exporter tells the metrics of both') or diag(slurp_file("$dir/two_servers.log"));
$second->stop;

# ---- the other forms ----

# postgres_exporter reads the two forms derived from its own form.
my ($inner) = slurp_file('monitoring/cloudnative_pg/configmap.yaml') =~ /^  queries: \|\n(.*)\z/ms;
append_to_file("$dir/cloudnative_pg.yml", $inner =~ s/^ {4}//mgr);
foreach my $file ('monitoring/pg_exporter/redlock.yml', "$dir/cloudnative_pg.yml")
{
	my $free = PostgreSQL::Test::Cluster::get_free_port();
	my ($text, @wrong);

	local $ENV{DATA_SOURCE_NAME} = $url;
	start('postgres_exporter', 'prometheus-postgres-exporter', '--disable-default-metrics', '--disable-settings-metrics',
		"--extend.query-path=$file", "--web.listen-address=127.0.0.1:$free");
	wait_until(sub { ($text = get("http://127.0.0.1:$free/metrics") // '') =~ /^redlock_/m }, "postgres_exporter reads $file");
	@wrong = grep { my $name = $_; $text !~ /^# TYPE $name $metrics{$name}[0]\n$name[ {]/m } sort keys %metrics;
	is("@wrong", '', 'each metric is there, with its type');
}

my $yaml = slurp_file('monitoring/pgwatch/metrics.yaml');
my $ran = 0;
while ($yaml =~ /^      15: \|\n((?: {8}.*\n)+)/mg)
{
	my ($row, $types) = split /\n/, $host->safe_psql('postgres', <<SQL, extra_params => [qw(-U monitor)]);
CREATE TEMP VIEW metric AS $1;
SELECT row_to_json(m) FROM metric m LIMIT 1;
SELECT string_agg(attname || ' ' || atttypid::regtype, ', ') FROM pg_attribute
 WHERE attrelid = 'metric'::regclass AND atttypid <> ALL ('{int4, int8, float8, text}'::regtype[]);
SQL

	like($row, qr/^\{"epoch_ns":\d{19},"(?!.*null)/, 'pgwatch: a row without null');
	is($types // '', '', 'of types that pgwatch knows');
	$ran++;
}
cmp_ok($ran, '>=', 7, 'all queries of pgwatch run');

# ---- many locks ----

$host->safe_psql('postgres', "SELECT redlock_acquire('lock ' || n) FROM generate_series(1, 30) n");
wait_value('count(redlock_resources_acquired_total)', 20);

# ---- a lease is lost ----

$_->cli('SET', 'redlock:held', 'somebody') foreach @nodes;
$s->run('SELECT pg_sleep(60)');
wait_value('redlock_stats_lost_total', 1);
wait_until(sub { alerts() eq 'RedlockLeaseLost firing' }, 'the alert fires') or diag(alerts());
$s->quit;
$_->cli('DEL', 'redlock:held') foreach @nodes;

# ---- locks fail while the nodes are ready ----

$_->cli(qw(ACL SETUSER default -set)) foreach @nodes[ 0, 1 ];
is(psql_result($host, "SELECT redlock_try('any')")->{state}, '08006', 'without a right at two nodes no lock is granted');
$_->cli(qw(ACL SETUSER default +set)) foreach @nodes[ 0, 1 ];
is(value('count(redlock_nodes_ready == 1)'), 3, 'all nodes are ready');
wait_until(sub { alerts() eq 'RedlockLeaseLost firing RedlockLocksFail firing' }, 'the alert fires') or diag(alerts());

# ---- the broker hangs ----

my $unreachable = value('redlock_stats_unreachable_total');
my $broker = broker_pid($host);
kill 'STOP', $broker;
is(psql_result($host, "SELECT redlock_try('any')")->{state}, '55000', 'a broker that hangs grants no lock');
kill 'CONT', $broker;
wait_value("redlock_stats_unreachable_total - $unreachable", 1);

# ---- nodes are down ----

my $gone = $nodes[2]->address;
$nodes[2]->kill9;
wait_value("redlock_node_errors_total{node=\"$gone\",class=\"connection\"} > bool 1", 1);
is(value("sum(redlock_node_errors_total{node=\"$gone\",class!=\"connection\"})"), 0, 'errors of one class');
wait_value("redlock_nodes_ready{node=\"$gone\"}", 0);
wait_value('redlock_quorum_nodes_ready{list="now"}', 2);
wait_until(sub { alerts() eq 'RedlockLeaseLost firing RedlockLocksFail firing RedlockNodeOut pending' }, 'the alert waits') or diag(alerts());
is((found('ALERTS{alertname="RedlockNodeOut"}'))[0]{node}, $gone, 'and names the node');

$nodes[1]->kill9;
wait_value('redlock_quorum_nodes_ready{list="now"}', 1);
wait_until(sub { alerts() =~ /RedlockNoQuorum pending/ }, 'no quorum') or diag(alerts());
wait_until(sub { absent() eq 'redlock_hosts_conflicting redlock_hosts_known redlock_hosts_refusing redlock_hosts_warning' }, 'the other metrics are there') or diag(absent());
wait_value('max(sql_exporter_last_scrape_failed)', 0);

# ---- no nodes, and the node inside the server ----

foreach my $list ('', 'local')
{
	$host->append_conf('postgresql.conf', "redlock.nodes = '$list'");
	$host->restart;
	wait_value('redlock_quorum_nodes{list="now"}', $list eq '' ? 0 : 1);
	wait_value('redlock_quorum_nodes_required{list="now"} - redlock_quorum_nodes_ready', $list eq '' ? 1 : 0);
	wait_value('max(sql_exporter_last_scrape_failed)', 0);
}

done_testing();
