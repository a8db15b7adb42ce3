#!/usr/bin/perl
#
# The linter accepts a tree in which the next version was begun as CONTRIBUTING.md says, and
# reports each missing script that updates an earlier version.
#
# Protects from: a linter that fails at the first commit after a release, when there are several
# earlier versions, or overlooks an earlier version without an update.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Copy qw(copy);
use File::Path qw(make_path);
use File::Temp;
use Test::More;

plan skip_all => 'the archive has no debian/' unless -e 'debian/changelog';

my $tree = File::Temp->newdir;
my $linter = getcwd() . "/scripts/lint_docs.pl";
my $next = '99.0.0';

sub content_of
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!";
	local $/;
	return scalar <$in>;
}

sub write_to
{
	my ($path, $content) = @_;

	open my $out, '>', "$tree/$path" or die "$path: $!";
	print $out $content;
	close $out or die "$path: $!";
	return;
}

sub lint { return `cd $tree && perl $linter versions 2>&1` }

my @scripts = glob 'redlock_pg--*.sql';
my ($last) = content_of('redlock_pg.control') =~ /^default_version = '(.*)'$/m;
my @new = ("redlock_pg--$last--$next.sql", "redlock_pg--$next.sql");

make_path("$tree/debian", "$tree/src");
copy($_, "$tree/$_") or die "$_: $!" for @scripts, 'README.md';
write_to($_, "/* $_ */\n") for @new;
write_to('redlock_pg.control', content_of('redlock_pg.control') =~ s/\Q$last\E/$next/gr);
write_to('META.json', content_of('META.json') =~ s/\Q$last\E/$next/gr);
write_to('CHANGELOG.md', "## $next (unreleased)\n\n" . content_of('CHANGELOG.md'));
write_to('debian/changelog',
	content_of('debian/changelog') =~ s/\A(.*)\Q$last\E/$1$next/r . content_of('debian/changelog'));
write_to('Makefile', 'DATA = ' . join(' ', sort @scripts, @new) . "\n");

is(lint(), '', 'the next version is begun');

foreach my $script (sort grep { /--.*--/ } @scripts, @new)
{
	my ($earlier) = $script =~ /^redlock_pg--(.*)--/;

	rename "$tree/$script", "$tree/away" or die $!;
	like(lint(), qr/^no script updates \Q$earlier\E$/m, "$earlier can't be updated");
	rename "$tree/away", "$tree/$script" or die $!;
}

done_testing();
