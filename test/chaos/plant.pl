#!/usr/bin/perl
#
# plant.pl NAME: break the sources in the working directory by an entry of planted.txt; print
# the entry's mode and model
#
# test/chaos/run --planted calls the program in the private copy of the sources.
use strict;
use warnings;

use FindBin qw($Bin);

@ARGV == 1 or die "usage: $0 NAME\n";
my ($about) = grep { /^\[\Q$ARGV[0]\E\]$/m } blocks();
die "no planted violation has the name $ARGV[0]\n" unless defined $about;
my ($mode) = $about =~ /^mode: (\w+)$/m or die "$ARGV[0]: no mode\n";
my ($finds) = $about =~ /^finds: (\w+)$/m or die "$ARGV[0]: no model\n";
my $lua = 0;
my $edits = 0;
while ($about =~ /^file: (\S+)\n<<<\n(.*?)\n===\n(.*?)>>>$/msg)
{
	my ($file, $old, $new) = ($1, $2, $3);
	replace($file, $old, $new =~ s/\n\z//r);
	$lua ||= $file =~ /\.lua$/;
	$edits++;
}
die "$ARGV[0]: nothing to change\n" unless $edits;
system('perl scripts/lua_text.pl >lua_text.new && mv lua_text.new src/protocol/lua_text.c') == 0 or die "lua_text.pl failed\n"
  if $lua;
print "$mode $finds\n";

sub blocks
{
	open my $in, '<', "$Bin/planted.txt" or die "planted.txt: $!\n";
	local $/;
	return split /(?=^\[[\w-]+\]$)/m, <$in>;
}

sub replace
{
	my ($file, $old, $new) = @_;
	open my $in, '<', $file or die "$file: $!\n";
	my $text = do { local $/; <$in> };
	close $in;
	my $count = () = $text =~ /\Q$old\E/g;
	die "$file has the text $count times, not once:\n$old\n" if $count != 1;
	$text =~ s/\Q$old\E/$new/;
	open my $out, '>', $file or die "$file: $!\n";
	print $out $text;
	close $out or die "$file: $!\n";
}
