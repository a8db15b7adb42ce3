#!/usr/bin/perl
# scripts/monitoring.pl: the files for exporters, made of monitoring/metrics.sql
#
#   monitoring.pl           writes the files
#   monitoring.pl check     fails if a file is stale, if a rule or a panel names an unknown metric,
#                           or if an alert has no test
#   monitoring.pl list      prints each metric: name, type, labels, help, with tabs between
#
# Works at the root of the tree.  scripts/lint.sh calls "check".

use strict;
use warnings;

use JSON::PP;

my $source = 'monitoring/metrics.sql';
my $made = "# Made by scripts/monitoring.pl of $source.\n";
my %files = (
	'monitoring/sql_exporter/redlock.yml' => \&sql_exporter,
	'monitoring/pg_exporter/redlock.yml' => \&pg_exporter,
	'monitoring/pgwatch/metrics.yaml' => \&pgwatch,
	'monitoring/cloudnative_pg/configmap.yaml' => \&cloudnative_pg,);

sub content_of
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$in>;
}

#
# The source
#

# Reads the queries: name, seconds, help, sql, and columns with kind, name and help.
sub queries
{
	my @queries;

	foreach my $block (split /\n\n+/, content_of($source))
	{
		next unless $block =~ /^-- query (\w+) (\d+): (.+)$/m;
		my $query = { name => $1, seconds => $2, help => $3, columns => [] };

		while ($block =~ /^-- (label|counter|gauge) (\w+): (.+)$/mg)
		{
			push @{ $query->{columns} }, { kind => $1, name => $2, help => $3 };
		}
		$query->{sql} = join '', grep { !/^--/ } split /^/, "$block\n";
		$query->{sql} =~ s/;\s*\z/\n/ or die "$source: $query->{name}: no SQL with a semicolon at its end\n";
		die "$source: $query->{name}: no value\n" unless values_of($query);
		push @queries, $query;
	}
	die "$source: no queries\n" unless @queries;
	return @queries;
}

sub labels_of { return grep { $_->{kind} eq 'label' } @{ $_[0]{columns} }; }
sub values_of { return grep { $_->{kind} ne 'label' } @{ $_[0]{columns} }; }

# The name of each metric, and its query and column.
sub metrics
{
	return map {
		my $query = $_;
		map { ("$query->{name}_$_->{name}" => { query => $query, column => $_ }) } values_of($query)
	} queries();
}

#
# YAML
#

sub quoted { return '"' . $_[0] =~ s/(["\\])/\\$1/gr . '"'; }

# A text of several lines, at this depth.
sub indented { return join '', map { /\S/ ? ' ' x $_[0] . $_ : $_ } split /^/, $_[1]; }

# Columns as postgres_exporter, pg_exporter and CloudNativePG list them.
sub column_list
{
	return "metrics:\n" . join '', map {
		"  - $_->{name}:\n      usage: " . uc($_->{kind}) . "\n      description: " . quoted($_->{help}) . "\n"
	} @{ $_[0]{columns} };
}

#
# The forms
#

# A job has one interval.
sub sql_exporter
{
	my @queries = @_;
	my %seconds = map { $_->{seconds} => 1 } @queries;
	my $first = 1;
	my $text = $made . <<'END';
# For sql_exporter by justwatch, Debian's prometheus-sql-exporter: /etc/prometheus-sql-exporter.yml.
# List a connection for each server, to the database that has the extension.  If one exporter asks
# several servers, name the server before the database, as in postgres://monitor:secret@10.0.0.1/mydb:
# sql_exporter makes the label host of it.
jobs:
END

	foreach my $seconds (sort { $a <=> $b } keys %seconds)
	{
		$text .= "  - name: redlock_${seconds}s\n    interval: ${seconds}s\n";
		$text .= $first
		  ? "    connections: &servers\n      - postgres:///postgres?host=/var/run/postgresql&sslmode=disable\n"
		  : "    connections: *servers\n";
		$text .= "    queries:\n";
		$first = 0;
		foreach my $query (grep { $_->{seconds} == $seconds } @queries)
		{
			my @labels = map { $_->{name} } labels_of($query);

			$text .= "      - name: $query->{name}\n        help: " . quoted($query->{help}) . "\n";
			$text .= '        labels: [' . join(', ', @labels) . "]\n" if @labels;
			$text .= "        values:\n" . join '', map { "          - $_->{name}\n" } values_of($query);
			$text .= "        allow_zero_rows: true\n        query: |\n" . indented(10, $query->{sql});
		}
	}
	return $text;
}

# Caches a result for less than the interval of the scrapes.  A table belongs to one database, so
# the query runs in each.
sub pg_exporter
{
	my $text = $made . <<'END';
# For pg_exporter: /etc/pg_exporter/redlock.yml, or the directory of your collectors.
END

	foreach my $query (@_)
	{
		my $ttl = $query->{seconds} - 5;
		my $once = $query->{name} eq 'redlock_runs' ? '' : 'cluster, ';

		$text .= "\n$query->{name}:\n  name: $query->{name}\n  desc: " . quoted($query->{help}) . "\n";
		$text .= "  query: |\n" . indented(4, $query->{sql});
		$text .= "  ttl: $ttl\n  timeout: 5\n  tags: [ $once\"extension:redlock_pg\" ]\n";
		$text .= indented(2, column_list($query));
	}
	return $text;
}

# pgwatch knows a label by its name.
sub pgwatch
{
	my $text = $made . <<'END';
# For pgwatch 3 and later: --metrics=FILE, or a source's preset "redlock" after an import.
metrics:
END

	foreach my $query (@_)
	{
		my @columns = map { $_->{kind} eq 'label' ? "$_->{name} AS tag_$_->{name}" : $_->{name} } @{ $query->{columns} };
		my @gauges = grep { $_->{kind} eq 'gauge' } values_of($query);
		my $instance = $query->{name} eq 'redlock_runs' ? 'false' : 'true';
		my $list = join ",\n       ", '(extract(epoch FROM now()) * 1e9)::bigint AS epoch_ns', @columns;

		$text .= "  $query->{name}:\n    description: " . quoted($query->{help}) . "\n    sqls:\n      15: |\n";
		$text .= indented(8, "SELECT /* pgwatch_generated */\n       $list\n  FROM (\n" . indented(2, $query->{sql}) . "  ) AS q\n");
		$text .= "    gauges:\n" . join '', map { "      - $_->{name}\n" } @gauges;
		$text .= "    is_instance_level: $instance\n";
	}
	$text .= "presets:\n  redlock:\n    description: \"Distributed locks of redlock_pg\"\n    metrics:\n";
	$text .= "      $_->{name}: $_->{seconds}\n" foreach @_;
	return $text;
}

sub cloudnative_pg
{
	my $text = $made . <<'END';
# For CloudNativePG: name this object in spec.monitoring.customQueriesConfigMap of a Cluster, with
# the key "queries".  With the extension in another database than the cluster's first one, add
# "target_databases" to each query.
apiVersion: v1
kind: ConfigMap
metadata:
  name: redlock-monitoring
  labels:
    cnpg.io/reload: ""
data:
  queries: |
END
	my $predicate = "SELECT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'redlock_pg')\n";

	foreach my $query (@_)
	{
		$text .= indented(4, "$query->{name}:\n  predicate_query: |\n" . indented(4, $predicate)
			  . "  query: |\n" . indented(4, $query->{sql}) . indented(2, column_list($query)));
	}
	return $text;
}

#
# Checks
#

my $wrong = 0;

sub complain
{
	print "@_\n";
	$wrong = 1;
}

# The expressions of all panels, also of panels in rows, and of the variables.
sub expressions
{
	my ($value) = @_;

	return map { expressions($_) } @$value if ref $value eq 'ARRAY';
	return () unless ref $value eq 'HASH';
	return map { /^(?:expr|query|definition)$/ && !ref $value->{$_} ? $value->{$_} : expressions($value->{$_}) } sort keys %$value;
}

sub check_names
{
	my ($file, @texts) = @_;
	my %metrics = metrics();
	my $count = 0;

	# without the values of labels
	foreach my $name (map { s/"[^"]*"//gr =~ /\b(redlock_\w+)/g } @texts)
	{
		$count++;
		complain("$file: no such metric: $name") unless $metrics{$name};
	}
	complain("$file: no metric") unless $count;
}

# promtool evaluates the rules and their tests in t/monitoring.t.
sub check_rules
{
	my $tests = content_of('monitoring/prometheus/rules_test.yml');

	foreach my $file (glob 'monitoring/prometheus/*rules.yml')
	{
		my @rules = split /^ *- alert: /m, content_of($file);

		shift @rules;
		complain("$file: no alert") unless @rules;
		foreach my $rule (@rules)
		{
			my ($alert) = $rule =~ /^(\w+)$/m;
			my ($expr) = $rule =~ /^ *expr: ((?:.+\n)(?:^ {10,}.+\n)*)/m;

			check_names("$file: $alert", $expr // '');
			foreach my $part ('severity', 'summary', 'description', 'remedy')
			{
				complain("$file: $alert has no $part") unless $rule =~ /^ *$part: \S/m;
			}
			# an alert fires in one case, and does not in another
			my @cases = split /^ *- eval_time: /m, $tests;
			my @own = grep { /^ *alertname: \Q$alert\E$/m } @cases;
			complain("rules_test.yml: $alert never fires") unless grep { /exp_labels/ } @own;
			complain("rules_test.yml: $alert always fires") unless grep { /exp_alerts: \[\]/ } @own;
		}
	}
	check_names('monitoring/prometheus/rules_test.yml', $tests =~ /^ *- series: (.*)$/mg);
}

sub check_dashboard
{
	my $file = 'monitoring/grafana/redlock.json';
	my $dashboard = decode_json(content_of($file));
	my $uid = '${datasource}';

	check_names($file, expressions($dashboard));
	foreach my $panel (@{ $dashboard->{panels} })
	{
		my @sources = ($panel->{datasource}, map { $_->{datasource} } @{ $panel->{targets} });

		complain("$file: \"$panel->{title}\" has a datasource of its own") if grep { ($_->{uid} // '') ne $uid } @sources;
		complain("$file: \"$panel->{title}\" has no description") unless $panel->{description};
	}
	return;
}

sub check
{
	foreach my $file (sort keys %files)
	{
		complain("$file is stale: call scripts/monitoring.pl") if !-e $file || content_of($file) ne $files{$file}->(queries());
	}
	check_rules();
	check_dashboard();
	return;
}

sub list
{
	my %metrics = metrics();

	foreach my $name (sort keys %metrics)
	{
		my ($query, $column) = @{ $metrics{$name} }{qw(query column)};
		print join("\t", $name, $column->{kind}, join(',', map { $_->{name} } labels_of($query)), $column->{help}), "\n";
	}
	return;
}

sub write_files
{
	foreach my $file (sort keys %files)
	{
		open my $out, '>', $file or die "$file: $!\n";
		print $out $files{$file}->(queries());
		close $out or die "$file: $!\n";
	}
	return;
}

my %commands = (write => \&write_files, check => \&check, list => \&list);
my $command = $commands{ $ARGV[0] // 'write' } or die "usage: $0 [check | list]\n";
$command->();
exit $wrong;
