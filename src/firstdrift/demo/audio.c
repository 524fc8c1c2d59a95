/* Clips of one second at 16 kHz: silence, noise, a low and a high tone, a rising and a falling one.
 *
 * All of it is integer arithmetic, and the last division is exact, so that audio.py makes the same bits. */
#include "kws.h"

static uint32_t mixed(uint32_t x)
{
    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d);
    x = (x ^ (x >> 15)) * UINT32_C(0x846ca68b);
    return x ^ (x >> 16);
}

static uint32_t clip_key(uint32_t seed, int clip)
{
    return mixed(mixed(seed + UINT32_C(0x9e3779b9)) + (uint32_t)clip);
}

/* A sine as two parabolas: 2^32 of phase are a period, 2^15 is the amplitude. */
static int32_t wave(uint32_t phase)
{
    const int32_t x = (int32_t)(phase >> 16) - 32768, size = x < 0 ? -x : x;
    const int32_t height = size * (32768 - size) / 8192;
    return x < 0 ? -height : height;
}

int clip_label(uint32_t seed, int clip) { return (int)(clip_key(seed, clip) % CLASSES); }

void make_clip(uint32_t seed, int clip, float samples[AUDIO])
{
    enum { SILENCE, NOISE, LOW, HIGH, RISING, FALLING };
    const int32_t tones[] = {0, 0, 1, 1, 1, 1}, hisses[] = {2, 128, 4, 4, 4, 4};
    const uint32_t key = clip_key(seed, clip), hertz = UINT32_C(268435); /* 2^32 / 16000 */
    const int label = clip_label(seed, clip);
    const uint32_t pitch = (80 + mixed(key + 1) % 120) * hertz;
    const int32_t loudness = tones[label] * (int32_t)(64 + mixed(key + 2) % 128);
    const uint32_t slope = label == RISING || label == FALLING ? 3 * pitch / AUDIO : 0;
    uint32_t speed = label == HIGH || label == FALLING ? 4 * pitch : pitch, phase = 0;
    for (int t = 0; t < AUDIO; t++) {
        const int32_t hiss = (int32_t)(mixed(key + UINT32_C(0x10000) + (uint32_t)t) >> 16) - 32768;
        samples[t] = (float)(loudness * wave(phase) + hisses[label] * hiss) / 8388608.0f;
        phase += speed;
        speed += label == FALLING ? 0 - slope : slope;
    }
}
