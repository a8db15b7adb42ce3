#!/usr/bin/perl
# tests_page.pl
#
# Prints t/README.md: the purpose of each TAP test, and the faults it protects from, by the
# comment at the head of the test.  scripts/lint.sh compares the page.
#
#   scripts/tests_page.pl >t/README.md

use strict;
use warnings;

sub paragraphs_of
{
	my ($file) = @_;
	my @lines;

	open my $in, '<', $file or die "$file: $!\n";
	while (<$in>)
	{
		last unless /^#(?: (.*))?$/;
		push @lines, $1 // '';
	}
	close $in;
	return map { s/\s+/ /gr } split /\n\n+/, join("\n", @lines);
}

sub cell { return $_[0] =~ s/\|/\\|/gr; }

print <<'END';
# TAP tests

Each file starts servers of its own, and can run alone: `scripts/test.sh tap t/hosts_exclude.t`. The first word of a name is its area. This page is made by `scripts/tests_page.pl` of the comments at the heads of the files.

| file | shows | protects from |
|---|---|---|
END

foreach my $file (sort glob 't/*.t')
{
	my ($shows, @others) = paragraphs_of($file);
	my ($protects) = map { /^Protects from(?: \([^)]*\))?:? (.*)/ ? $1 : () } @others;

	die "$file: its head must say what the test shows, and what it protects from\n" unless $shows && $protects;
	my $name = $file =~ s{^t/}{}r;
	printf "| [%s](%s) | %s | %s |\n", $name, $name, cell($shows), cell($protects);
}
