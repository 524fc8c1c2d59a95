/* The layers in a row: a sample forward and backward, and SGD with momentum over what the samples add up to. */
#include "kws.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float LEARNING_RATE = 0.005f, MOMENTUM = 0.9f;

enum kind { AVERAGE_POOL, CONV, NORM, RELU, MAX_POOL, MEAN, FLATTEN, LINEAR, SOFTMAX };

static const struct {
    void (*forward)(layer *, const float *);
    void (*backward)(layer *, const float *, float *);
    const char *op;
} kinds[] = {
    {average_pool_forward, NULL, "AvgPool1d"}, /* nothing before the first layer learns */
    {conv_forward, conv_backward, "Conv1d"},
    {norm_forward, norm_backward, "LayerNorm"},
    {relu_forward, relu_backward, "ReLU"},
    {max_pool_forward, max_pool_backward, "MaxPool1d"},
    {mean_forward, mean_backward, "AdaptiveAvgPool1d"},
    {flatten_forward, flatten_backward, "Flatten"},
    {linear_forward, linear_backward, "Linear"},
    {softmax_forward, NULL, "Softmax"}, /* the backward of the loss goes through it */
};

static const struct {
    enum kind kind;
    int channels, size; /* 0 channels: as many as come in */
} rows[LAYERS] = {
    {AVERAGE_POOL, 0, 16},
    {CONV, 16, 9}, {NORM, 0, 0}, {RELU, 0, 0}, {MAX_POOL, 0, 4},
    {CONV, 32, 5}, {NORM, 0, 0}, {RELU, 0, 0}, {MAX_POOL, 0, 4},
    {CONV, 64, 3}, {NORM, 0, 0}, {RELU, 0, 0}, {MAX_POOL, 0, 4},
    {MEAN, 0, 0}, {FLATTEN, 0, 0}, {LINEAR, CLASSES, 0}, {SOFTMAX, 0, 0},
};

static void set_shape(int64_t *shape, int *ndim, int a, int b, int c)
{
    const int given[MAX_DIMS] = {a, b, c};
    *ndim = 0;
    for (int i = 0; i < MAX_DIMS; i++)
        if (given[i])
            shape[(*ndim)++] = given[i];
}

static int add_parameter(parameter *p, const char *port, int a, int b, int c)
{
    set_shape(p->shape, &p->ndim, a, b, c);
    p->count = 1;
    for (int i = 0; i < p->ndim; i++)
        p->count *= (int)p->shape[i];
    p->port = port;
    p->value = calloc((size_t)p->count, sizeof *p->value);
    p->gradient = calloc((size_t)p->count, sizeof *p->gradient);
    p->velocity = calloc((size_t)p->count, sizeof *p->velocity);
    return p->value && p->gradient && p->velocity ? 0 : -1;
}

static int add_parameters(layer *l, enum kind kind)
{
    if (kind == CONV)
        return add_parameter(&l->weight, "weight", l->channels, l->inputs, l->size) |
               add_parameter(&l->bias, "bias", l->channels, 0, 0);
    if (kind == NORM)
        return add_parameter(&l->weight, "weight", l->channels, l->length, 0) |
               add_parameter(&l->bias, "bias", l->channels, l->length, 0);
    if (kind == LINEAR)
        return add_parameter(&l->weight, "weight", l->channels, l->inputs, 0) |
               add_parameter(&l->bias, "bias", l->channels, 0, 0);
    return 0;
}

int network_create(network *net)
{
    int channels = 1, length = AUDIO, failed = 0;
    memset(net, 0, sizeof *net);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &net->layers[i];
        const enum kind kind = rows[i].kind;
        const int pools = kind == AVERAGE_POOL || kind == MAX_POOL, flat = kind >= FLATTEN;
        l->forward = kinds[kind].forward;
        l->backward = kinds[kind].backward;
        l->op = kinds[kind].op;
        l->size = rows[i].size;
        l->inputs = channels, l->in_length = length;
        l->channels = rows[i].channels ? rows[i].channels : channels;
        l->length = kind == MEAN || flat ? 1 : pools ? length / l->size : length;
        l->count = l->channels * l->length;
        set_shape(l->shape, &l->ndim, 1, l->channels, flat ? 0 : l->length);
        l->out = calloc((size_t)l->count, sizeof *l->out);
        l->gradient = calloc((size_t)l->count, sizeof *l->gradient);
        l->chosen = calloc((size_t)l->count, sizeof *l->chosen);
        failed |= !l->out || !l->gradient || !l->chosen || add_parameters(l, kind);
        channels = l->channels, length = l->length;
    }
    return failed ? -1 : 0;
}

static void free_parameter(parameter *p)
{
    free(p->value);
    free(p->gradient);
    free(p->velocity);
}

void network_free(network *net)
{
    for (int i = 0; i < LAYERS; i++) {
        free(net->layers[i].out);
        free(net->layers[i].gradient);
        free(net->layers[i].chosen);
        free_parameter(&net->layers[i].weight);
        free_parameter(&net->layers[i].bias);
    }
}

static void tell(sink_function sink, void *context, int at, const char *phase, const layer *l, const float *values)
{
    const fd_tensor tensor = {values, FD_F32, l->shape, l->ndim};
    if (sink)
        sink(context, at, at < LAYERS ? l->op : NULL, phase, &tensor); /* the loss is no layer */
}

float network_sample(network *net, const float *x, int label, sink_function sink, void *context)
{
    layer *layers = net->layers, *logits = &layers[LAYERS - 2], *softmax = &layers[LAYERS - 1];
    for (int i = 0; i < LAYERS; i++) {
        layers[i].forward(&layers[i], i ? layers[i - 1].out : x);
        tell(sink, context, i, "fwd", &layers[i], layers[i].out);
    }

    label = bug == LABEL_OFF_BY_ONE ? (label + CLASSES - 1) % CLASSES : label;
    const float loss = -logf(softmax->out[label]);
    for (int c = 0; c < CLASSES; c++) /* cross-entropy and softmax together */
        logits->gradient[c] = softmax->out[c] - (c == label && bug != LOSS_GRAD ? 1.0f : 0.0f);
    tell(sink, context, LAYERS, "lossgrad", logits, logits->gradient);

    for (int i = LAYERS - 2; i >= 0; i--) {
        tell(sink, context, i, "agrad", &layers[i], layers[i].gradient);
        if (i > 0)
            layers[i].backward(&layers[i], layers[i - 1].out, layers[i - 1].gradient);
    }
    return loss;
}

parameter *network_parameter(network *net, int number, int *at_layer)
{
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &net->layers[i];
        if (l->weight.port == NULL)
            continue;
        if (number < 2) {
            *at_layer = i;
            return number ? &l->bias : &l->weight;
        }
        number -= 2;
    }
    return NULL;
}

void network_scale_gradients(network *net, float factor)
{
    parameter *p;
    for (int n = 0, at; (p = network_parameter(net, n, &at)) != NULL; n++)
        for (int i = 0; i < p->count; i++)
            p->gradient[i] *= bug == MISSING_MEAN_SCALE ? 1.0f : factor;
}

void network_update(network *net)
{
    parameter *p;
    const float share = bug == MOMENTUM_SIGN ? -1.0f : bug == DAMPENING ? 1.0f - MOMENTUM
                        : bug == RATE_TWICE  ? LEARNING_RATE                : 1.0f;
    const float kept = bug == NO_MOMENTUM ? 0.0f : MOMENTUM;
    for (int n = 0, at; (p = network_parameter(net, n, &at)) != NULL; n++)
        for (int i = 0; i < p->count; i++) {
            p->velocity[i] = kept * p->velocity[i] + share * p->gradient[i];
            p->value[i] -= LEARNING_RATE * p->velocity[i];
        }
}

void network_zero_gradients(network *net)
{
    parameter *p;
    for (int n = 0, at; bug != GRAD_NOT_ZEROED && (p = network_parameter(net, n, &at)) != NULL; n++)
        memset(p->gradient, 0, sizeof *p->gradient * (size_t)p->count);
}
