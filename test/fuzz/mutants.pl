#!/usr/bin/perl
#
# mutants.pl: break one reader at a time; its fuzzing program must find the fault
#
#	mutants.pl [--seconds N] [NAME ...]
#
# Works with a copy in a temporary directory.  Writes TAP: one test for each mutant.  Only a
# surviving mutant takes all the seconds.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;

use lib dirname(abs_path($0)) . '/../sim';
use Mutants;

# name, program, file, text that is there once, new text
my @mutants = (
	['value-read-before-end', 'value', 'src/protocol/value.c', 'len < VALUE_HEAD ||', 'len < VALUE_HEAD - 1 ||'],
	['value-shared-at-end', 'value', 'src/protocol/value.c', ' && len > VALUE_HEAD)', ')'],
	['value-permits-over-limit', 'value', 'src/protocol/value.c', '> PERMITS_MAX)', '> 10 * PERMITS_MAX)'],
	['value-trace-of-stranger', 'value', 'src/protocol/value.c', "\t\tmemset(value, 0, sizeof(*value));\n", ''],
	['holder-part-too-long', 'holder', 'src/shared/holder.c', 'len + whole < HOLDER_PART_SIZE)', 'len + whole <= HOLDER_PART_SIZE)'],
	['holder-cut-without-end', 'holder', 'src/shared/holder.c', 'size - at - 1 ? len : size - at - 1', 'size - at ? len : size - at'],
	['words-without-end', 'words', 'src/protocol/words.c', 'while (stop < end &&', 'while (stop <= end &&'],
	['words-room-for-no-nul', 'words', 'src/protocol/words.c', '|| len >= size)', '|| len > size)'],
	['words-number-over-most', 'words', 'src/protocol/words.c', 'if (value > (uint64_t) most)', 'if (value > (uint64_t) most + 1)'],
	['note-from-the-future', 'run_note', 'src/protocol/run_note.c', ' || note->token > now_us + AHEAD_MAX_US ||', ' ||'],
	['note-pid-left-out', 'run_note', 'src/protocol/run_note.c', 'note->pid = (int) pid;', ''],
	['config-one-node-more', 'hosts', 'src/protocol/hosts.c', '!words_take_number(&text, end, HOSTS_NODES_MAX, &count)', '!words_take_number(&text, end, HOSTS_NODES_MAX + 1, &count)'],
	['record-beyond-answer', 'hosts', 'src/protocol/hosts.c', ' || number > end - *at)', ')'],
	['twin-twice', 'hosts', 'src/protocol/hosts.c', "\t\tif (twin[i] == j)\n\t\t\treturn false;\n", "\t\tif (twin[i] == j)\n\t\t\treturn i > 0;\n"],
	['mark-place-beyond-list', 'marks', 'src/protocol/steps.c', 'words_take_number(&text, end, count, &place)', 'words_take_number(&text, end, HOSTS_NODES_MAX, &place)'],
	['mark-in-part', 'marks', 'src/protocol/steps.c', "\tread.count = (int32_t) count;\n", "\tread.count = (int32_t) count;\n\t*mark = read;\n"],
	['judge-forgotten-as-free', 'inspection', 'src/protocol/inspection.c', ' || node[i].may_have_forgotten))', '))'],
	['judge-value-of-a-length', 'inspection', 'src/protocol/inspection.c', "!other_value.ours)\n\t\treturn one->value_len ==", "!other_value.ours)\n\t\treturn one->value_len <="],
	['records-beyond-answer', 'inspect_many', 'src/protocol/inspect_many.c', 'hosts * LUA_HOST_DIGITS + bytes)', 'hosts * LUA_HOST_DIGITS)'],
	['probe-one-step-more', 'messages', 'src/broker/script.c', 'probe->path.count == PROBE_STEPS_MAX ||', 'probe->path.count > PROBE_STEPS_MAX ||'],
	['want-without-host', 'messages', 'src/broker/script.c', ' && *host != 0;', ';'],
	['reply-fourth-element', 'replies', 'src/broker/script.c', '(reply->elements == 3 ||', '(reply->elements == 3 || reply->elements == 2 ||'],
	['reply-token-ahead', 'replies', 'src/broker/script.c', "||\n\t\t\tanswer->token > redlock_wall_clock_us() + SCRIPT_TOKEN_AHEAD_MAX_US)", ')'],
	['url-host-too-long', 'url', 'src/shared/url.c', '(size_t) len >= size)', '(size_t) len > size)'],
	['url-port-zero', 'url', 'src/shared/url.c', " ||\n\t\t url->port == 0))", '))'],
	['url-control-character', 'url', 'src/shared/url.c', 'text_find_control(url->host) != NULL', 'url->host[0] == 1'],
	['url-damaged-text', 'url', 'src/shared/url.c', "\t\t   memchr(url->password, '\\0', sizeof(url->password)) != NULL && is_flag", "\t\t   is_flag"],
	['url-damaged-flag', 'url', 'src/shared/url.c', 'return byte <= 1;', 'return byte <= 2;'],
	['text-cut-in-character', 'errors', 'src/shared/text.c', 'if (n + wanted >= size)', 'if (n + 1 >= size)'],
	['error-class-of-part', 'errors', 'src/protocol/node_error.c', 'memcmp(error, classes[i].error, len) == 0', 'memcmp(error, classes[i].error, len) <= 0'],
);

my $root = abs_path(dirname(abs_path($0)) . '/../..');
my $seconds = 60;
GetOptions('seconds=i' => \$seconds) or exit 2;
my %wanted = map { $_ => 1 } @ARGV;
@mutants = grep { $wanted{ $_->[0] } } @mutants if @ARGV;
die "no such mutant\n" unless @mutants;

my $dir = tempdir(CLEANUP => 1);
system("tar -C '$root' -cf - --exclude='*_fuzz' Makefile redlock_pg.control src test/fuzz test/unit | tar -C '$dir' -xf -") == 0
  or die "no copy\n";

# One at a time: all mutants use the same copy.
my $killed = run_mutants(1, \@mutants, \&try_mutant, sub {
	my ($mutant, $result) = @_;
	return check(scalar($result =~ /^found/), sprintf('%-26s %s', $mutant->[0], $result));
});
finish(sprintf '%d mutants, %d killed', scalar @mutants, $killed);

# Returns "found: ...", or why the target found nothing.
sub try_mutant
{
	my ($mutant) = @_;
	my ($name, $program, $file, $old, $new) = @$mutant;
	my $text = slurp("$root/$file");
	my $count = () = $text =~ /\Q$old\E/g;
	return "its text is there $count times, not once" if $count != 1;

	write_file("$dir/$file", $text =~ s/\Q$old\E/$new/r);
	my $result = run_program($program);
	write_file("$dir/$file", $text);
	return $result;
}

sub run_program
{
	my ($program) = @_;

	unlink "$dir/test/fuzz/${program}_fuzz";
	system("make -s -C '$dir' PG_CONFIG='" . ($ENV{PG_CONFIG} // 'pg_config') . "' FUZZ_WARNINGS=-w test/fuzz/${program}_fuzz") == 0
	  or return 'it does not compile';
	my $said = `'$dir/test/fuzz/fuzz.pl' --seconds $seconds $program 2>&1`;
	return 'it survives' if $? == 0;
	return $said =~ /^# .*?(it does not hold: .*|runtime error: .*|AddressSanitizer: \S+)/m ? "found: $1" : "it fails otherwise: $said";
}
