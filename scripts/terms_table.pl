#!/usr/bin/perl
# terms_table.pl
#
# Prints docs/reference/functions.md with the table of terms that can't be combined, made from
# src/sql/terms.c: a row for each first term and SQLSTATE.  scripts/lint.sh compares the document.
#
#   scripts/terms_table.pl >/tmp/functions.md && cp /tmp/functions.md docs/reference/functions.md

use strict;
use warnings;

my %sqlstate = (ERRCODE_INVALID_PARAMETER_VALUE => '22023', ERRCODE_FEATURE_NOT_SUPPORTED => '0A000');
my $document = 'docs/reference/functions.md';

sub content_of
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$in>;
}

# `scope "detached"` of messages is `scope => 'detached'` of a call.
sub cell
{
	my ($name) = @_;

	return $name if $name =~ /^several /;
	return "`$name`" unless $name =~ /^(\w+) "(\w+)"$/;
	return "`$1 => '$2'`";
}

my $source = content_of('src/sql/terms.c');
$source =~ s/(?<!\\)"\s+"//g;

my $string = qr/"((?:[^"\\]|\\.)*)"/;
my %name = map { s/\\"/"/gr } $source =~ /\[(TERM_\w+)\] = $string,/g;
my (@rows, %with);
my $count = 0;

while ($source =~ /\{PAIR_(REFUSED|REQUIRED), (TERM_\w+), (TERM_\w+), (\w+),\s*$string,\s*$string\}/g)
{
	my ($kind, $first, $second, $code) = ($1, $2, $3, $4);

	die "src/sql/terms.c: $first, $second: no such name or SQLSTATE\n"
	  unless $name{$first} && $name{$second} && $sqlstate{$code};
	my $row = join ' | ', cell($name{$first}) . ($kind eq 'REQUIRED' ? ' left out' : ''), $sqlstate{$code};
	push @rows, $row unless $with{$row};
	push @{ $with{$row} }, cell($name{$second});
	$count++;
}
die "src/sql/terms.c: a row has another form\n" if $count != (() = $source =~ /\{PAIR_/g);

my $rows = '';
foreach my $row (@rows)
{
	my ($first, $code) = split / \| /, $row;
	$rows .= "| $first | " . join(', ', @{ $with{$row} }) . " | $code |\n";
}

my $text = content_of($document);
$text =~ s/^(\| terms \| together with \| SQLSTATE \|\n\|---\|---\|---\|\n)(?:\|.*\n)*/$1$rows/m
  or die "$document: no table of terms\n";
print $text;
