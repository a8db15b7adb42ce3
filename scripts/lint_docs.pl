#!/usr/bin/perl
# scripts/lint_docs.pl: do the documents say what the sources say?
#
#   lint_docs.pl messages    quoted messages are emitted, and emitted messages are explained,
#                            in a table sorted by message
#   lint_docs.pl settings    each setting has its row, and no other setting is named
#   lint_docs.pl objects     the same for functions, views and columns, with signatures
#   lint_docs.pl links       links, anchors, paths and commands lead somewhere, also the
#                            paths in comments of the sources and tests
#   lint_docs.pl examples    blocks of code have the right mark, and can be parsed
#   lint_docs.pl prose       README and the pages for users are short, with plain sentences
#   lint_docs.pl versions    all files name the same version, and META.json follows the
#                            PGXN Meta Spec
#
# Prints each fault, and then fails.  scripts/lint.sh calls it, at the root of the tree.

use strict;
use warnings;

use File::Basename;
use File::Find;
use JSON::PP;

my @documents = ('README.md', 'SAFETY.md', sort(glob('docs/*.md'), glob 'docs/*/*.md'));
my @sources = ('redlock_pg.c', sort(files_below('src', qr/\.c$/)));
my ($settings_file) = grep { /\/guc\.c$/ } @sources;
my ($version) = content_of('redlock_pg.control') =~ /^default_version = '([\d.]+)'$/m;
my $script = "redlock_pg--$version.sql";
my $wrong = 0;
my %said;

sub complain
{
	print "@_\n" unless $said{"@_"}++;
	$wrong = 1;
}

sub content_of
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$in>;
}

sub files_below
{
	my ($root, $pattern) = @_;
	my @found;

	find({
			no_chdir => 1,
			wanted => sub {
				$File::Find::prune = 1 if /\/(?:\.git|node_modules|target|tmp_check|\.venv)$/;
				push @found, s/^\.\///r if /$pattern/ && -f;
			}
		},
		$root);
	return @found;
}

sub all_documents
{
	return sort(files_below('.', qr/\.md$/));
}

# A document without its blocks of code.
sub prose_of
{
	my $text = content_of($_[0]);

	$text =~ s/^( *)```.*?^\1```$//msg;
	return $text;
}

# The text of a section, with its subsections.
sub section_of
{
	my ($path, $title) = @_;
	my $text = content_of($path);

	$text =~ /^(#+) \Q$title\E\n(.*?)(?=^#{1,6} |\z)/ms or die "$path: no section \"$title\"\n";
	return $2;
}

sub is_in
{
	my ($text, @list) = @_;
	return scalar grep { $_ eq $text } @list;
}

# Compares two lists, which should have the same names.
sub compare
{
	my ($what, $there, $documented) = @_;

	complain("$what: not documented: $_") for grep { !is_in($_, @$documented) } @$there;
	complain("$what: documented, but not there: $_") for grep { !is_in($_, @$there) } @$documented;
}

#
# Messages
#

# Messages of PostgreSQL, and of Redis without a first word in capitals.
sub is_foreign
{
	my ($message) = @_;

	return $message =~ /^[A-Z]+ /
	  || is_in(
		$message,
		'... cannot be executed from a function',
		'... does not exist',
		'cannot execute ... in a read-only transaction',
		'canceling statement due to conflict with recovery',
		'could not find function "..." in file "..."',
		'could not open configuration file',
		'could not serialize access due to concurrent update',
		'deadlock detected',
		'function name "..." is not unique',
		'invalid transaction termination',
		'parameter "redlock.nodes" cannot be changed now',
		'permission denied for function ...',
		'See server log for query details',
		'skipping missing configuration file');
}

# Messages that need no explanation: good news, messages with their reason or a sum of other
# messages, messages for developers; of a node, a part of another message, or of its second
# connection.
my @unexplained = (
	'redlock node %s is ready',
	'redlock.nodes is in force now',
	'redlock node %s: %s',
	'%s must be called as a trigger',
	'redlock_fence_merge is for the rows of redlock_fences only',
	'redlock_shared_fences_merge is for new rows of redlock_shared_fences only',
	'redlock_runs_merge is for the rows of redlock_runs only',
	'out of memory',
	'its node is not ready',
	'its appendonly is no',
	'it has a passphrase',);

# A quoted message as a pattern: "..." stands for a filled-in value.
sub pattern_of
{
	return join '.*', map { quotemeta } split /\Q...\E/, $_[0], -1;
}

# The strings of the sources, each with a pattern of its possible texts.
sub texts_of_sources
{
	my @texts;

	foreach my $source (map { content_of($_) } @sources)
	{
		# join adjacent strings
		$source =~ s/"\s*INT64_\w+\s*"/%d/g;
		$source =~ s/(?<!\\)"\s+"//g;
		foreach ($source =~ /"((?:[^"\\\n]|\\.)*)"/g)
		{
			s/\\"/"/g;
			my @parts = split /%(?:[-.*\d]*l*[a-z])/, $_, -1;
			push @texts, [ $_, join '.*', map { quotemeta } @parts ]
			  if join('', @parts) =~ /[a-z]{3}.*[a-z]{3}/;
		}
	}
	return @texts;
}

# The messages of ereport, without sums of several messages.
sub primary_messages
{
	my @messages;

	foreach my $source (map { content_of($_) } @sources)
	{
		$source =~ s/(?<!\\)"\s+"//g;
		foreach ($source =~ /\b(?:GUC_check_)?errmsg(?:_plural\(\s*"[^"]*",)?\(?\s*"((?:[^"\\\n]|\\.)*)"/g)
		{
			s/\\"/"/g;
			push @messages, $_;
		}
	}
	return @messages;
}

# Code of four words or more, except commands, clauses and settings.
sub is_quotation
{
	my ($code) = @_;

	return $code =~ /^(?:\.\.\.|[A-Za-z][a-z]*[_a-z.]*)(?: \S+){3,}$/ && $code !~ /[=|(<>\[]/;
}

# The messages of the table of docs/reference/errors.md.
sub listed_messages
{
	my ($path) = @_;
	my @messages;
	my $last = '';

	foreach my $row (content_of($path) =~ /^(\| `.*)$/mg)
	{
		my ($message) = $row =~ /^\| `([^`]+)` \| [^|]*\w[^|]* \| [^|]*\w[^|]* \| [^|]*\w[^|]* \|$/;

		if (!defined $message)
		{
			complain("$path: want one message, its state, its cause and what to do: $row");
			next;
		}
		# case, punctuation and placeholders do not count
		my $key = lc($message) =~ s/[^a-z0-9]+/ /gr =~ s/^ | $//gr;
		complain("$path: out of order: $message") if $key lt $last;
		complain("$path: two rows have: $message") if is_in($message, @messages);
		$last = $key;
		push @messages, $message;

		# a row with few fixed words would explain any message
		my $fixed = () = $message =~ /\w+/g;
		complain("$path: explains too much: $message") if $message =~ /\Q...\E./ && $fixed < 3;
	}
	return @messages;
}

# The errors of a node, from the files of the broker that talk to nodes.
sub node_errors
{
	my @errors;

	foreach my $source (grep { /^src\/broker\/(?:node\w*|resolver|script|tls)\.c$/ } @sources)
	{
		my $text = content_of($source) =~ s/^StaticAssertDecl\(.*?\);$//msgr;
		$text =~ s/(?<!\\)"\s+"//g;
		push @errors, grep { /^(?:its? |no answer |could not \S+ ?.*:|the host name |too many |TLS failed)/ }
		  map { s/\\"/"/gr } $text =~ /"((?:[^"\\\n]|\\.)*)"/g;
	}
	return @errors;
}

sub messages
{
	my @texts = texts_of_sources();
	my $path = 'docs/reference/errors.md';
	my @messages = listed_messages($path);
	my @patterns;

	die "no messages in $path\n" if @messages < 50;
	foreach my $document (@documents)
	{
		my $prose = prose_of($document);

		my @quoted = grep { is_quotation($_) } $prose =~ /`([^`\n]+)`/g;
		push @quoted, @messages if $document eq $path;
		foreach my $message (@quoted)
		{
			my $pattern = pattern_of($message);
			next if is_foreign($message);
			next if grep { $message =~ /^$_->[1]$/ || $_->[0] =~ /$pattern/ } @texts;
			complain("$document: nothing emits: $message");
		}
	}

	@patterns = map { pattern_of($_) } @messages;
	foreach my $message (primary_messages(), node_errors())
	{
		# a filled-in value may be any text, and so may "..."
		(my $sample = $message) =~ s/%(?:[-.*\d]*l*[a-z])/.../g;
		my $pattern = pattern_of($sample);
		next if is_in($message, @unexplained);
		next if grep { $sample =~ /^$_$/ } @patterns;
		next if grep { $_ =~ /^$pattern$/ } @messages;
		complain("$path: does not explain: $message");
	}
}

#
# Settings
#

sub settings
{
	my @there = content_of($settings_file) =~ /DefineCustom\w+Variable\(\s*"(redlock\.\w+)"/g;
	my @rows = content_of('docs/reference/settings.md') =~ /^\| `(redlock\.\w+)` \|/mg;

	die "no settings in $settings_file\n" if @there < 5;
	compare('settings in docs/reference/settings.md', \@there, \@rows);
	complain("settings in docs/reference/settings.md: not in the order of $settings_file")
	  if "@there" ne "@rows" && !$wrong;

	# also messages, their hints, and the comments of SQL objects
	foreach my $document (all_documents(), @sources, $script)
	{
		# join strings in parts
		my $text = content_of($document) =~ s/(?<!\\)"\s*\n\s*"//gr;
		foreach my $name ($text =~ /(?<![\w\/])(redlock\.(?!lua\b)\w+)/g)
		{
			# "redlock.tls_..." stands for all settings with this prefix
			complain("$document: no such setting: $name")
			  unless is_in($name, @there) || ($name =~ /_$/ && grep { /^\Q$name\E/ } @there);
		}
	}
}

#
# Functions, views, columns
#

# Parameters in one layout: "resource text, wait interval = NULL".
sub normal_parameters
{
	my ($text) = @_;

	$text =~ s/ DEFAULT / = /g;
	$text =~ s/\s+/ /g;
	return join ', ', map { s/^ | $//gr } split /,/, $text;
}

# Functions of one name differ in their first parameter.
sub overload
{
	my ($name, $parameters) = @_;

	my ($first) = $parameters =~ /^(\w+)/;

	return "$name(" . ($first // '') . ($parameters =~ /, token\b/ ? ', token' : '') . ')';
}

sub objects
{
	my $sql = content_of($script);
	my (%functions, %columns, %objects);

	$sql =~ s/--.*$//mg;
	while ($sql =~ /^CREATE (FUNCTION|PROCEDURE) (\w+)\(([^;]*?)\)\s*(?:RETURNS ((?:SETOF )?[\w\[\]]+)(?: \w+)?\s*)?AS /mg)
	{
		my ($kind, $name, $parameters, $returns) = ($1, $2, normal_parameters($3), $4 // '');

		$objects{$name} = 1;
		if ($name =~ /_rows?$/ && $parameters =~ /^OUT /)
		{
			# the columns of views
			$columns{$name} = [ map { /^OUT (\w+)/ } split /, /, $parameters ];
			next;
		}
		next if $returns eq 'trigger';
		# the columns of its rows; the section of the function names them
		my @out = $parameters =~ /(?:^|, )OUT (\w+)/g;
		foreach my $column (@out)
		{
			complain("docs/reference/functions.md: $name: no column $column")
			  unless section_of('docs/reference/functions.md', $name) =~ /`$column`/;
		}
		$parameters =~ s/(?:^|, )OUT .*//;
		$functions{ overload($name, $parameters) } = { kind => $kind, parameters => $parameters, returns => $returns };
	}
	while ($sql =~ /^CREATE VIEW (\w+) AS\s+(?:WITH \w+ AS MATERIALIZED [^;]*?\)\)\s+)?SELECT (.*?)\s+FROM (\w+)/msg)
	{
		my ($name, $list, $source) = ($1, $2, $3);

		$objects{$name} = 1;
		$columns{$name} =
		  $list eq '*' ? $columns{$source} : [ map { /(\w+)\s*$/ } split /,/, $list ];
	}
	while ($sql =~ /^CREATE TABLE (\w+) \((.*?)^\)/msg)
	{
		my ($name, $list) = ($1, $2);

		$objects{$name} = 1;
		$columns{$name} = [ $list =~ /^\s+(?!PRIMARY KEY)(\w+)/mg ];
	}
	$objects{$1} = 1 while $sql =~ /^CREATE TYPE (\w+)/mg;
	die "no functions in $script\n" if keys %functions < 5;

	# their reference
	my $reference = content_of('docs/reference/functions.md');
	my %described;
	while ($reference =~ /^## (\w+)[^\n]*\n\n```\n(CALL )?(\w+)\((.*?)\)(?: → ((?:setof )?[\w\[\]]+))?\n```/msg)
	{
		my ($title, $call, $name, $parameters, $returns) =
		  ($1, $2, $3, normal_parameters($4), $5 // '');
		my $function = $functions{ overload($name, $parameters) };

		complain("docs/reference/functions.md: $name under the heading $title") if $title ne $name;
		$described{ overload($name, $parameters) } = 1;
		next unless $function;
		complain("docs/reference/functions.md: $name has other parameters: $function->{parameters}")
		  if $parameters ne $function->{parameters};
		complain("docs/reference/functions.md: $name returns $function->{returns}")
		  if lc $returns ne lc $function->{returns};
		complain("docs/reference/functions.md: $name is a $function->{kind}")
		  if !!$call != ($function->{kind} eq 'PROCEDURE');
	}
	compare('functions in docs/reference/functions.md', [ sort keys %functions ], [ sort keys %described ]);

	# views and the table
	foreach my $name (grep { !/_rows?$/ } sort keys %columns)
	{
		my @documented =
		  $name eq 'redlock_fences'
		  ? section_of('docs/reference/fencing.md', 'The table') =~ /: (`resource`[^.]*)\./
			  ? $1 =~ /`(\w+)`/g
			  : ()
		  : map { /`(\w+)`/g } section_of('docs/reference/views.md', $name) =~ /^\| ([^|]*`[^|]*) \|/mg;
		compare("columns of $name", $columns{$name}, \@documented);
	}
	my @headings = content_of('docs/reference/views.md') =~ /^## (redlock_\w+)$/mg;
	compare('views in docs/reference/views.md',
		[ sort grep { !/_rows?$/ && $_ ne 'redlock_fences' } keys %columns ], [ sort @headings ]);

	# all functions that documents name
	foreach my $document (@documents)
	{
		foreach my $name ($document, content_of($document) =~ /\b(redlock_\w+(?:\.\w+)?)/g)
		{
			next if $name eq $document || $name =~ /^redlock_pg\b/ || $name eq 'redlock_nodes.conf';
			my ($object, $column) = split /\./, $name;
			complain("$document: no such object: $object") unless $objects{$object};
			complain("$document: no such column: $name")
			  if $column && $objects{$object} && !is_in($column, @{ $columns{$object} // [] });
		}
	}
}

#
# Prose
#

sub prose
{
	foreach my $page ('README.md', 'SAFETY.md', glob 'docs/design/*.md')
	{
		my $words = () = content_of($page) =~ /\S*\w\S*/g;
		complain("$page: $words words, and 1500 are the limit") if $words > 1500;
	}
	foreach my $document (@documents, 'CONTRIBUTING.md', 'src/README.md', glob 'test/*/README.md')
	{
		foreach my $paragraph (split /\n\s*\n|\n(?=[-*|\d])/, prose_of($document))
		{
			my $count = () = $paragraph =~ /\S+/g;
			my ($begin) = $paragraph =~ /((?:\S+\s+){0,6})/;

			complain("$document: a paragraph of $count words, and 120 are the limit: $begin")
			  if $count > 120 && $paragraph !~ /^\s*\|/;
			# statements, not questions
			while ($paragraph =~ /(?:^|[.:!?] )((?:Who|What)\b[^.?!|]*[.?!])/mg)
			{
				complain("$document: name the actor in place of: $1") if $1 !~ /\?$/;
			}
		}
	}
}

#
# Links
#

# The anchors of a document's headings, as GitHub forms them.
sub anchors_of
{
	my ($path) = @_;
	my (%anchors, %count);

	foreach my $title (prose_of($path) =~ /^#{1,6} +(.+?) *$/mg)
	{
		$title =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
		my $anchor = lc $title;
		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ s/ /-/g;
		my $number = $count{$anchor}++;
		$anchors{ $number ? "$anchor-$number" : $anchor } = 1;
	}
	return \%anchors;
}

# Paths from the root of the tree, and functions named as part of a file, must exist.
sub check_paths
{
	my ($file) = @_;
	my $text = content_of($file);

	$text =~ s/^#include .*//mg; # from src, and for the compiler to check
	foreach my $path ($text =~ /(?<![\w\/.\-])((?:\.ci|bench|docs|monitoring|scripts|sql|src|t|test)\/[\w.\/\-]*\w)/g)
	{
		# a program exists as its C file
		complain("$file: no such file: $path") unless -e $path || -e "$path.c";
	}
	while ($text =~ /\b(\w+_\w+) of (src\/[\w\/]+\.[ch])\b/g)
	{
		my ($function, $path) = ($1, $2);
		complain("$file: not in $path: $function")
		  unless -e $path && content_of($path) =~ /^\Q$function\E\(/m;
	}
}

# The commands of a document: parts of scripts/test.sh and targets of the Makefile must exist.
sub check_commands
{
	my ($document) = @_;
	my $text = content_of($document);
	my ($parts) = content_of('scripts/test.sh') =~ /^(full \|.*)\)$/m;
	my @parts = split / \| /, $parts;
	my @targets = (content_of('Makefile') =~ /^(\w+):/mg, qw(all clean install installcheck uninstall));
	my @code = $text =~ /^ *```\w*\n(.*?)^ *```$/msg;

	push @code, prose_of($document) =~ /`([^`\n]+)`/g;
	foreach my $line (map { split /\n/ } @code)
	{
		$line =~ s/\s#.*//;
		complain("$document: no such part of scripts/test.sh: $1")
		  if $line =~ /\bscripts\/test\.sh (\w+)/ && !is_in($1, @parts);
		next unless $line =~ /^ *(?:sudo )?make((?: +[\w=.\/\-]+)*)/;
		foreach my $target (grep { /^\w+$/ } split / +/, $1)
		{
			complain("$document: no such target of the Makefile: $target") unless is_in($target, @targets);
		}
	}
}

sub links
{
	my $count = 0;

	foreach my $document (all_documents())
	{
		my $prose = prose_of($document);

		# a link may have code in its text, but code has no link
		$prose =~ s/\[((?:[^\[\]`]|`[^`\n]*`)*)\]\(/[](/g;
		$prose =~ s/`[^`\n]*`//g;
		foreach my $link ($prose =~ /\]\(([^)\s]+)\)/g, $prose =~ /^ *\[[^\]]+\]: *(\S+)/mg,
			$prose =~ /<\w+ [^>]*\b(?:href|src)="([^"]*)"/g)
		{
			my ($path, $anchor) = split /#/, $link, 2;

			next if $path =~ /^[a-z]+:/;
			$count++;
			my $target = $path eq '' ? $document : dirname($document) . "/$path";
			if (!-e $target)
			{
				complain("$document: leads nowhere: $path");
			}
			elsif (defined $anchor && !anchors_of($target)->{$anchor})
			{
				complain("$document: no such heading: $path#$anchor");
			}
		}

		# CHANGELOG.md may name removed files
		check_paths($document) unless $document eq 'CHANGELOG.md';
		check_commands($document);
	}
	check_paths($_) foreach files_below('.', qr/^\.\/(?:src|test|t|bench)\/.*\.(?:[ch]|lua|t|txt)$|^\.\/redlock_pg\.c$/);
	die "hardly any links\n" if $count < 50;
}

#
# Examples
#

# t/docs_examples.t runs blocks marked as SQL, so no SQL may have another mark.  Other blocks
# must at least be parsed without an error.
my %reader = (sh => [ 'bash', '-n' ], python => [ 'python3', '-c', 'import ast, sys; ast.parse(sys.stdin.read())' ]);

sub examples
{
	foreach my $document (@documents)
	{
		my $text = content_of($document);
		while ($text =~ /^( *)```([^\n]*)\n(.*?)^\1```$/msg)
		{
			my ($indent, $mark, $code) = ($1, $2, $3);

			$code =~ s/^$indent//mg;
			complain("$document: what is this block? ```$mark") unless $mark =~ /^(?:|sql|sh|python|mermaid)$/;
			complain("$document: a block of SQL is not marked: $code")
			  if $mark eq '' && $code =~ /^(?:SELECT|INSERT|UPDATE|DELETE|BEGIN|CREATE|DO|CALL)\b.*;\s*(?:--.*)?$/m;
			next unless $reader{$mark};
			open my $out, '|-', @{ $reader{$mark} } or die "$reader{$mark}[0]: $!\n";
			print $out $code;
			complain("$document: $reader{$mark}[0] can't read this: $code") unless close $out;
		}
	}
}

#
# Versions
#

# The rules of https://pgxn.org/spec, as far as we use it.
sub check_meta
{
	my ($meta) = @_;
	my $where = 'META.json';

	foreach my $field (qw(name version abstract maintainer license provides meta-spec))
	{
		complain("$where: no $field") unless $meta->{$field};
	}
	my %known = map { $_ => 1 } qw(name version abstract description maintainer license provides
	  prereqs resources generated_by meta-spec tags no_index release_status);
	complain("$where: unknown field $_") for grep { !$known{$_} && !/^x_/i } sort keys %$meta;
	complain("$where: it is of another specification")
	  if $meta->{'meta-spec'}{version} ne '1.0.0'
	  || $meta->{'meta-spec'}{url} ne 'https://pgxn.org/meta/spec.txt';
	complain("$where: the license has no such name") if $meta->{license} ne 'postgresql';

	foreach my $provided (sort keys %{ $meta->{provides} })
	{
		my $extension = $meta->{provides}{$provided};
		foreach my $field (qw(file docfile))
		{
			complain("$where: no such file: " . ($extension->{$field} // $field))
			  unless -f ($extension->{$field} // '');
		}
	}
	foreach my $relations (values %{ $meta->{prereqs} })
	{
		complain("$where: $_ is no version")
		  for grep { !/^\d+\.\d+\.\d+$/ } map { values %$_ } values %$relations;
	}

	my $resources = $meta->{resources};
	my %urls = (
		homepage => $resources->{homepage},
		'bugtracker web' => $resources->{bugtracker}{web},
		'repository url' => $resources->{repository}{url},
		'repository web' => $resources->{repository}{web});
	complain("$where: the $_ is no URL") for grep { ($urls{$_} // '') !~ m{^https://[^/]+/} } sort keys %urls;
	complain("$where: the type of the repository is none") if $resources->{repository}{type} !~ /^[a-z]+$/;
	return;
}

sub versions
{
	my $meta = decode_json(content_of('META.json'));
	my @scripts = sort glob 'redlock_pg--*.sql';
	my ($data) = content_of('Makefile') =~ /^DATA = (.*)$/m;
	my %other = (
		'META.json' => $meta->{version},
		'META.json, provides' => $meta->{provides}{redlock_pg}{version},
		'META.json, file' => $meta->{provides}{redlock_pg}{file} =~ s/^redlock_pg--|\.sql$//gr,
		'CHANGELOG.md' => content_of('CHANGELOG.md') =~ /\A## (\S+)/,
		'debian/changelog' => content_of('debian/changelog') =~ /\A\S+ \(([^-]+)-/,
	);

	check_meta($meta);
	complain("$_: has version $other{$_}, redlock_pg.control has $version")
	  for grep { $other{$_} ne $version } sort keys %other;
	compare('scripts in the Makefile', \@scripts, [ split / /, $data ]);
	foreach my $earlier (grep { $_ ne $version } map { /^redlock_pg--([\d.]+)\.sql$/ ? $1 : () } @scripts)
	{
		complain("no script updates $earlier") unless grep { /^redlock_pg--\Q$earlier\E--/ } @scripts;
	}
	foreach my $sql (@scripts)
	{
		complain("$sql: its first line names another file") if content_of($sql) !~ m{\A/\* \Q$sql\E \*/$}m;
	}
}

my %checks = (examples => \&examples, messages => \&messages, settings => \&settings, objects => \&objects, links => \&links, prose => \&prose, versions => \&versions);
my $check = $checks{ $ARGV[0] // '' } or die "usage: $0 " . join(' | ', sort keys %checks) . "\n";
$check->();
exit $wrong;
