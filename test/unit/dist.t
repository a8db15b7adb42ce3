#!/usr/bin/perl
#
# "make dist" makes the same archive of a commit in two clones, at different times, with
# different umasks and in different time zones.  The archive has a bill of materials that lists
# the libraries that the Makefile links.
#
# Protects from: an archive that cannot be made again and compared; files of the working tree in
# the archive; a library that the bill does not list.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Temp;
use IO::Uncompress::Unzip qw($UnzipError);
use JSON::PP;
use Test::More;

# scripts/dist.sh has the reason for the version
my ($git) = (qx(git --version 2>&1) // '') =~ /^git version 2\.(\d+)/;
plan skip_all => 'the archive has no .gitattributes' unless -e '.gitattributes';
plan skip_all => 'no git 2.38 or later' unless ($git // 0) >= 38;

my $time = 1_000_000_000; # 2001-09-09T01:46:40Z
my $tmp = File::Temp->newdir;
my $tree = getcwd();
# IO::Uncompress::Unzip reads times in the zone of this process
$ENV{TZ} = 'UTC';
# the user's configuration and repository are out of reach
delete @ENV{ grep { /^GIT_/ } keys %ENV };
$ENV{GIT_CONFIG_GLOBAL} = $ENV{GIT_CONFIG_SYSTEM} = '/dev/null';
$ENV{"GIT_${_}_NAME"} = $ENV{"GIT_${_}_EMAIL"} = 'nobody' for qw(AUTHOR COMMITTER);
$ENV{"GIT_${_}_DATE"} = "$time +0000" for qw(AUTHOR COMMITTER);

sub run
{
	my ($command) = @_;

	system($command) == 0 or die "failed: $command\n";
}

# Makes the archive in a clone, and returns its content.
sub archive_of
{
	my ($clone, $umask, $zone, $clock) = @_;

	run("umask $umask && git clone -q $tmp/origin $tmp/$clone");
	run("echo changed >>$tmp/$clone/README.md && touch $tmp/$clone/new");
	run("umask $umask && cd $tmp/$clone && TZ=$zone $clock make -s dist");
	my @archives = glob "$tmp/$clone/redlock_pg-*.zip";
	is(scalar @archives, 1, "the clone \"$clone\" has an archive");
	open my $in, '<:raw', $archives[0] or die "$archives[0]: $!";
	local $/;
	return scalar <$in>;
}

run("git init -q $tmp/origin");
run("git --git-dir=$tmp/origin/.git --work-tree=$tree add -A");
run("git -C $tmp/origin commit -q -m all && git -C $tmp/origin reset -q --hard");

my $clock = qx(which faketime 2>/dev/null) ? "faketime '2031-02-03 04:05:06'" : '';
my $archive = archive_of('one', '022', 'UTC', '');
ok($archive eq archive_of('two', '077', 'Asia/Kathmandu', $clock), 'two clones make one archive');

my (%times, %content);
my $unzip = IO::Uncompress::Unzip->new(\$archive) or die "$UnzipError\n";
for (my $more = 1; $more > 0; $more = $unzip->nextStream)
{
	my $name = $unzip->getHeaderInfo->{Name};

	$times{ $unzip->getHeaderInfo->{Time} } = 1;
	local $/;
	$content{ $name =~ s{^redlock_pg-[\d.]+/}{}r } = $name =~ /\/$/ ? '' : <$unzip>;
}
is_deeply([ keys %times ], [$time], 'all times are that of the commit');
ok($content{'META.json'} && $content{'redlock_pg.control'}, 'the archive has the sources');
unlike($content{'README.md'}, qr/changed$/, '... of the commit');
ok(!exists $content{new} && !exists $content{'.gitattributes'}, '... and no other file');

my $bill = decode_json($content{'redlock_pg.spdx.json'});
my ($whole, @libraries) = @{ $bill->{packages} };
my $meta = decode_json($content{'META.json'});
is($bill->{spdxVersion}, 'SPDX-2.3', 'the archive has a bill of materials');
is($bill->{creationInfo}{created}, '2001-09-09T01:46:40Z', '... with the time of the commit');
is("$whole->{name} $whole->{versionInfo}", "$meta->{name} $meta->{version}", '... for this version');
is_deeply([ grep { !/^SPDXRef-[A-Za-z0-9.\-]+$/ } map { $_->{SPDXID} } $whole, @libraries ], [], '... with ids as SPDX wants them');
is(scalar @{ $bill->{relationships} }, 1 + @libraries, '... with a relation for each package');
is_deeply([ grep { !/^>= [\d.]+\d$/ } map { $_->{versionInfo} } @libraries ], [], '... with versions');

my $links = qx(make -n -B with_tls=yes 2>/dev/null | grep -E -- '-shared|-o exec/');
my %linked = map { $_ => 1 } $links =~ /(?<= )-l(\w+)/g;
my %listed = map { $_ => 1 } map { $_->{comment} =~ /\blib(\w+)/g } @libraries;
is_deeply(\%listed, \%linked, '... and the libraries that the Makefile links');

done_testing();
