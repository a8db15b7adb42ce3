/*
 * local_notes.c
 *		The notes of last runs at the node inside the server; see local_notes.h.
 */
#include "protocol/local_notes.h"

#include <string.h>

const RunNote *
local_notes_find(const local_notes *notes, const char *job, int64_t now_us)
{
	for (int i = 0; i < LOCAL_NOTES_MAX; i++)
		if (notes->note[i].ends_us > now_us && strcmp(notes->note[i].job, job) == 0)
			return &notes->note[i].run;
	return NULL;
}

void
local_notes_keep(local_notes *notes, const char *job, const RunNote *run, int64_t now_us,
				 int64_t keep_us)
{
	const RunNote *noted = local_notes_find(notes, job, now_us);
	local_note *place = &notes->note[0];

	if (noted != NULL && run_note_compare(noted, run) > 0)
		return;
	for (int i = 0; i < LOCAL_NOTES_MAX; i++)
	{
		local_note *note = &notes->note[i];

		if (&note->run == noted)
		{
			place = note;
			break;
		}
		if (note->ends_us < place->ends_us)
			place = note;
	}
	place->ends_us = now_us + keep_us;
	memset(place->job, 0, sizeof(place->job));
	memcpy(place->job, job, strlen(job));
	place->run = *run;
}
