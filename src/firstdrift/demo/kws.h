/* A keyword spotter of 17 layers that trains, in plain C99: what its files share.
 *
 *     1 x 16000 samples -> average pool 16
 *     -> 3 x (conv1d, LayerNorm over channels and time, ReLU, max-pool 4), with 16, 32 and 64 channels
 *     -> average over time -> flatten -> linear -> softmax, cross-entropy over 6 classes
 *
 * Everything is float32, in plain loops that sum from first to last, one sample at a time. */
#ifndef KWS_H
#define KWS_H

#include "firstdrift.h"

enum { LAYERS = 17, CLASSES = 6, AUDIO = 16000, CLIPS = 320, MAX_DIMS = 3 };

/* ---- bugs.c: mistakes that ports make, to be switched on by name ---- */

#define X(id, name, steps, what) id,
typedef enum {
#include "bugs.def"
    BUG_COUNT
} bug_id;
#undef X
extern bug_id bug; /* the one that is switched on */

int choose_bug(const char *name); /* 0, or -1 if there is none of this name */
void list_bugs(void);

/* ---- audio.c: clips that are made, not loaded ---- */

int clip_label(uint32_t seed, int clip);
void make_clip(uint32_t seed, int clip, float samples[AUDIO]);

/* ---- layers.c: what each kind of layer computes ---- */

typedef struct {
    const char *port; /* weight or bias; NULL where a layer has none */
    float *value, *gradient, *velocity;
    int64_t shape[MAX_DIMS];
    int ndim, count;
} parameter;

typedef struct layer {
    void (*forward)(struct layer *, const float *x);              /* x to out */
    void (*backward)(struct layer *, const float *x, float *to_x); /* gradient to to_x, and to the parameters */
    const char *op;
    int inputs, in_length; /* channels and length of what comes in */
    int channels, length;  /* of what goes out */
    int size;              /* of the window or kernel */
    int64_t shape[MAX_DIMS];
    int ndim, count;
    float *out, *gradient; /* dL/d out */
    float mean, scale;     /* of LayerNorm: kept for its backward */
    int *chosen;           /* of max-pool: where each maximum was */
    int calls;             /* samples it has seen */
    parameter weight, bias;
} layer;

void average_pool_forward(layer *l, const float *x);
void conv_forward(layer *l, const float *x);
void conv_backward(layer *l, const float *x, float *to_x);
void norm_forward(layer *l, const float *x);
void norm_backward(layer *l, const float *x, float *to_x);
void relu_forward(layer *l, const float *x);
void relu_backward(layer *l, const float *x, float *to_x);
void max_pool_forward(layer *l, const float *x);
void max_pool_backward(layer *l, const float *x, float *to_x);
void mean_forward(layer *l, const float *x);
void mean_backward(layer *l, const float *x, float *to_x);
void flatten_forward(layer *l, const float *x);
void flatten_backward(layer *l, const float *x, float *to_x);
void linear_forward(layer *l, const float *x);
void linear_backward(layer *l, const float *x, float *to_x);
void softmax_forward(layer *l, const float *x);

/* ---- network.c: the layers in a row, and a training step ---- */

/* Called with each tensor as it is computed: borrowed, not to be changed. A NULL sink is the ordinary path. */
typedef void (*sink_function)(void *context, int layer, const char *op, const char *phase, const fd_tensor *tensor);

typedef struct {
    layer layers[LAYERS];
} network;

int network_create(network *net); /* 0, or -1 if there is no memory */
void network_free(network *net);
float network_sample(network *net, const float *x, int label, sink_function sink, void *context); /* its loss */
void network_scale_gradients(network *net, float factor);
void network_update(network *net);
void network_zero_gradients(network *net);

/* The parameters, layer by layer, weight before bias; NULL after the last one. */
parameter *network_parameter(network *net, int number, int *at_layer);

/* ---- weights.c: the file that the PyTorch side exports ---- */

/* 0; or -1, with one sentence in `error`. */
int weights_load(network *net, const char *const *probes, const char *path, char *error, size_t size);
int weights_save(network *net, const char *const *probes, const char *path, char *error, size_t size);

#endif
